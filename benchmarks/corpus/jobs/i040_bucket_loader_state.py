# truth: exact
# class: data
# head: imports
# A bucketing loader for sequences of unequal length: the order of the batches follows (seed, epoch); its state_dict is the epoch and the place in it.


ms.set_seed(340)


class BucketLoader:
    def __init__(self, sequences, batch_size, seed):
        self.sequences, self.seed = sequences, seed
        by_length = sorted(range(len(sequences)), key=lambda k: (len(sequences[k]), k))
        self.groups = [by_length[k : k + batch_size] for k in range(0, len(by_length), batch_size)]
        self.epoch = 0
        self.place = 0

    def __len__(self):
        return len(self.groups)

    def _collate(self, numbers):
        longest = max(len(self.sequences[k]) for k in numbers)
        x = np.zeros((len(numbers), longest, 3), np.float32)
        mask = np.zeros((len(numbers), longest, 1), np.float32)
        for row, k in enumerate(numbers):
            x[row, : len(self.sequences[k])] = self.sequences[k]
            mask[row, : len(self.sequences[k])] = 1
        y = np.stack([self.sequences[k].max(0)[:1] for k in numbers])
        return x, mask, y

    def __iter__(self):
        order = np.random.RandomState([self.seed, self.epoch]).permutation(len(self.groups))
        while self.place < len(order):
            numbers = self.groups[order[self.place]]
            self.place += 1
            yield self._collate(numbers)
        self.epoch, self.place = self.epoch + 1, 0

    def state_dict(self):
        return {"epoch": self.epoch, "place": self.place}

    def load_state_dict(self, state):
        self.epoch, self.place = state["epoch"], state["place"]


class Pooled(nn.Cell):
    def __init__(self):
        super().__init__()
        self.token = nn.SequentialCell(nn.Dense(3, 8), nn.Tanh())
        self.head = nn.Dense(8, 1)

    def construct(self, x, mask):
        h = (self.token(x) * mask).sum(1) / mask.sum(1)
        return self.head(h)


r = np.random.RandomState(40)
sequences = [r.randn(2 + int(r.randint(7)), 3).astype(np.float32) for _ in range(32)]
net = Pooled()
mse = nn.MSELoss()
opt = nn.Adam(net.trainable_params(), 0.02)
vg = ms.value_and_grad(lambda x, m, y: mse(net(x, m), y), None, net.trainable_params())

batches = ck.data.resumable(BucketLoader(sequences, 4, seed=4), epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    for batch in batches:
        loss, grads = vg(*(ms.Tensor(a) for a in batch))
        opt(grads)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
