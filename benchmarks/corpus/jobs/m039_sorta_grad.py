# truth: exact
# class: closure
# head: pynative
# SortaGrad: in the first epoch utterances come by length, later in an order of (seed, epoch); the loader's state is epoch and place, padded batches are cached.

ms.set_seed(4339)


class Utterances:
    def __init__(self, utterances, size, seed):
        self.utterances, self.size, self.seed = utterances, size, seed
        self.epoch, self.at = 0, 0
        self.padded = {}

    def __len__(self):
        return len(self.utterances) // self.size

    def order(self):
        by_length = sorted(range(len(self.utterances)), key=lambda i: (len(self.utterances[i]), i))
        groups = [tuple(by_length[i : i + self.size]) for i in range(0, len(by_length), self.size)]
        if self.epoch == 0:
            return groups
        return [groups[i] for i in np.random.default_rng([self.seed, self.epoch]).permutation(len(groups))]

    def pad(self, group):
        if group not in self.padded:
            longest = max(len(self.utterances[i]) for i in group)
            frames, mask = np.zeros((self.size, longest, 3), np.float32), np.zeros((self.size, longest), np.float32)
            for row, i in enumerate(group):
                n = len(self.utterances[i])
                frames[row, :n], mask[row, :n] = self.utterances[i], 1
            self.padded[group] = frames, mask
        return self.padded[group]

    def __iter__(self):
        if self.at == len(self):
            self.epoch, self.at = self.epoch + 1, 0
        for group in self.order()[self.at :]:
            self.at += 1
            yield self.pad(group)

    def state_dict(self):
        return {"epoch": self.epoch, "at": self.at}

    def load_state_dict(self, state):
        self.epoch, self.at = state["epoch"], state["at"]


class NextFrame(nn.Cell):
    def __init__(self):
        super().__init__()
        self.body = nn.SequentialCell(nn.Dense(3, 8), nn.Tanh(), nn.Dense(8, 3))

    def construct(self, frames, mask):
        error = ((self.body(frames[:, :-1]) - frames[:, 1:]) ** 2).mean(-1)
        return (error * mask[:, 1:]).sum(), mask[:, 1:].sum()


r = np.random.RandomState(39)
utterances = [np.cumsum(r.randn(r.randint(4, 10), 3), 0).astype(np.float32) / 3 for _ in range(32)]
net = NextFrame()
opt = nn.Adam(net.trainable_params(), 0.02)
cell = ck.AccumulationTrainCell(net, opt, accumulation_steps=2, normalize="weights").set_train()
batches = ck.data.resumable(Utterances(utterances, 4, seed=39), epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches)
    manager.restore(state)
    for frames, mask in batches:
        cell(ms.Tensor(frames), ms.Tensor(mask))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
