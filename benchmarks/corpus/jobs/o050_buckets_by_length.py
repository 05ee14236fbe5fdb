# truth: exact
# class: data
# head: pynative_ops
# A loader of sentences groups them into buckets of about one length; the order of batches is drawn from (seed, epoch), and its state_dict is epoch and place. A GRU reads them.

ms.set_seed(3550)
WORDS = 15


class BucketLoader:
    def __init__(self, sentences, targets, size, seed):
        self.sentences, self.targets = sentences, targets
        self.size, self.seed = size, seed
        self.by_length = sorted(range(len(sentences)), key=lambda n: (len(sentences[n]), n))
        self.epoch = self.place = 0

    def __len__(self):
        return len(self.sentences) // self.size

    def batches(self):
        rng = np.random.default_rng([self.seed, self.epoch])
        jitter = [
            self.by_length[n]
            for n in np.argsort(np.arange(len(self.by_length)) + rng.uniform(0, 4, len(self.by_length)))
        ]
        groups = [jitter[i * self.size : (i + 1) * self.size] for i in range(len(self))]
        return [groups[i] for i in rng.permutation(len(self))]

    def collate(self, numbers):
        longest = max(len(self.sentences[n]) for n in numbers)
        out = np.zeros((len(numbers), longest), np.int32)
        for row, n in zip(out, numbers):
            row[: len(self.sentences[n])] = self.sentences[n]
        return out, self.targets[numbers]

    def __iter__(self):
        if self.place == len(self):
            self.epoch, self.place = self.epoch + 1, 0
        groups = self.batches()
        while self.place < len(self):
            numbers = groups[self.place]
            self.place += 1
            yield self.collate(numbers)

    def state_dict(self):
        return {"epoch": self.epoch, "place": self.place}

    def load_state_dict(self, state):
        self.epoch, self.place = state["epoch"], state["place"]


class Reader(nn.Cell):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 5)
        self.cell = nn.GRUCell(5, 6)
        self.out = nn.Dense(6, 1)

    def construct(self, words, y):
        seen = self.embedding(words)
        hidden = ops.zeros((words.shape[0], 6), ms.float32)
        for t in range(words.shape[1]):
            mask = (words[:, t : t + 1] > 0).astype(ms.float32)
            hidden = mask * self.cell(seen[:, t], hidden) + (1 - mask) * hidden
        return ((self.out(hidden) - y) ** 2).mean()


r = np.random.RandomState(50)
sentences = [r.randint(1, WORDS, r.randint(2, 8)) for _ in range(48)]
targets = np.array([[np.mean(s > 7)] for s in sentences], np.float32)
reader = Reader()
cell = ck.AccumulationTrainCell(reader, nn.Adam(reader.trainable_params(), 0.02), accumulation_steps=2).set_train()

batches = ck.data.resumable(BucketLoader(sentences, targets, 6, seed=50), epochs=4)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches)
    manager.restore(state)
    for words, y in batches:
        cell(ms.Tensor(np.asarray(words)), ms.Tensor(np.asarray(y)))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
