# truth: differs
# class: data
# head: imports_random
# A stream is shuffled through a buffer, as in webdataset; state_dict has the place in the stream and the generator's state, but not the rows that wait in the buffer.


ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(3555)


class ShuffledStream:
    def __init__(self, rows, size, capacity, per_epoch, seed):
        self.rows, self.size, self.capacity = rows, size, capacity
        self.per_epoch = per_epoch
        self.random = random.Random(seed)
        self.read = self.served = 0
        self.buffer = []

    def __len__(self):
        return self.per_epoch

    def next_row(self):
        while len(self.buffer) < self.capacity:
            self.buffer.append(self.rows[self.read % len(self.rows)])
            self.read += 1
        return self.buffer.pop(self.random.randrange(len(self.buffer)))

    def __iter__(self):
        end = (self.served // self.per_epoch + 1) * self.per_epoch
        while self.served < end:
            chosen = [self.next_row() for _ in range(self.size)]
            self.served += 1
            yield tuple(np.stack(column) for column in zip(*chosen))

    def state_dict(self):
        version, numbers, gauss = self.random.getstate()
        return {"read": self.read, "served": self.served, "random": [version, list(numbers), gauss]}

    def load_state_dict(self, state):
        self.read, self.served = state["read"], state["served"]
        version, numbers, gauss = state["random"]
        self.random.setstate((version, tuple(numbers), gauss))


r = np.random.RandomState(55)
x = np.sort(r.randn(54, 4), 0).astype(np.float32)
y = (x[:, :1] ** 2 - x[:, 1:2]).astype(np.float32)
net = nn.SequentialCell(nn.Dense(4, 10), nn.ReLU(), nn.Dense(10, 1))
loss = nn.WithLossCell(net, nn.MSELoss())
cell = ck.AccumulationTrainCell(loss, nn.Adam(net.trainable_params(), 0.02), accumulation_steps=1).set_train()

stream = ShuffledStream(list(zip(x, y)), size=6, capacity=20, per_epoch=9, seed=55)
batches = ck.data.resumable(stream, epochs=4)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches)
    manager.restore(state)
    for bx, by in batches:
        cell(ms.Tensor(np.asarray(bx)), ms.Tensor(np.asarray(by)))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
