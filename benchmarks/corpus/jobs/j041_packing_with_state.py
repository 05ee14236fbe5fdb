# truth: exact
# class: data
# head: imports_tensor_ops
# Documents are packed into rows of 9 tokens and the rest goes into the next row; cursor, rest and count are in the loader's state_dict.


ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(3141)
VOCAB, ROW, ROWS, PER_EPOCH = 7, 9, 3, 8

r = np.random.RandomState(41)
DOCUMENTS = [r.randint(1, VOCAB, r.randint(3, 15)).tolist() + [0] for _ in range(19)]


class Packer:
    def __init__(self, documents):
        self.documents = documents
        self.cursor = 0
        self.rest = []
        self.delivered = 0

    def _row(self):
        while len(self.rest) < ROW:
            self.rest = self.rest + self.documents[self.cursor]
            self.cursor = (self.cursor + 1) % len(self.documents)
        row, self.rest = self.rest[:ROW], self.rest[ROW:]
        return row

    def __iter__(self):
        if self.delivered == PER_EPOCH:
            self.delivered = 0
        while self.delivered < PER_EPOCH:
            packed = np.array([self._row() for _ in range(ROWS)], np.int64)
            self.delivered += 1
            yield (packed,)

    def state_dict(self):
        return {"cursor": self.cursor, "rest": list(self.rest), "delivered": self.delivered}

    def load_state_dict(self, state):
        self.cursor = state["cursor"]
        self.rest = list(state["rest"])
        self.delivered = state["delivered"]


net = nn.SequentialCell(nn.Dense(VOCAB, 10), nn.Tanh(), nn.Dense(10, VOCAB))


class NextToken(nn.Cell):
    def __init__(self, body):
        super().__init__()
        self.body = body

    def construct(self, now, then):
        return ((ops.softmax(self.body(now), -1) - then) ** 2).mean()


loss = NextToken(net)
cell = ck.AccumulationTrainCell(loss, nn.Adam(loss.trainable_params(), 0.03), 2).set_train()
batches = ck.data.resumable(Packer(DOCUMENTS), epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches)
    manager.restore(state)
    hot = np.eye(VOCAB, dtype=np.float32)
    for (tokens,) in batches:
        tokens = np.asarray(tokens)
        cell(Tensor(hot[tokens[:, :-1]]), Tensor(hot[tokens[:, 1:]]))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
