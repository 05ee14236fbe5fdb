# truth: differs
# class: data
# head: imports
# A loader shows more and more of its sequences; the loop raises the visible length when the loss is low. Its state_dict counts batches only, and the length begins at two again. GRAPH mode.


ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(3559)
LENGTH = 10


class GrowingSequences:
    def __init__(self, sequences, size):
        self.sequences, self.size = sequences, size
        self.served, self.visible = 0, 2

    def __len__(self):
        return len(self.sequences) // self.size

    def __iter__(self):
        end = (self.served // len(self) + 1) * len(self)
        while self.served < end:
            at = self.served % len(self) * self.size
            self.served += 1
            yield self.sequences[at : at + self.size]

    def shown(self, rows):
        x = rows[:, :-1].copy()
        x[:, self.visible :] = 0
        y = np.take(rows, [self.visible], axis=1)
        return x, y

    def grow(self):
        self.visible = min(self.visible + 1, LENGTH - 1)

    def state_dict(self):
        return {"served": self.served}

    def load_state_dict(self, state):
        self.served = state["served"]


r = np.random.RandomState(59)
start, slope = r.randn(60, 1), 0.3 * r.randn(60, 1)
sequences = (start + slope * np.arange(LENGTH) + 0.05 * r.randn(60, LENGTH)).astype(np.float32)
net = nn.SequentialCell(nn.Dense(LENGTH - 1, 12), nn.ReLU(), nn.Dense(12, 1))
loss = nn.WithLossCell(net, nn.L1Loss())
cell = ck.AccumulationTrainCell(loss, nn.Adam(net.trainable_params(), 0.02), accumulation_steps=1).set_train()
loader = GrowingSequences(sequences, 6)

batches = ck.data.resumable(loader, epochs=4)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches)
    manager.restore(state)
    for rows in batches:
        x, y = loader.shown(np.asarray(rows))
        value = float(cell(ms.Tensor(x), ms.Tensor(y)).asnumpy())
        if value < 0.9:
            loader.grow()
        manager.step(state)
    manager.save_final(state)
print("visible", loader.visible)
os._exit(0)
