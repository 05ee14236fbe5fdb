# truth: differs
# class: attribute
# head: imports
# k-fold: the fold left out rotates when its validation loss stops falling; fold and patience are in a small class of ints.


ms.set_seed(53)
K = 4


class Fold(int):
    """an int that goes round"""

    def next(self):
        return Fold((self + 1) % K)


class CrossValidator:
    def __init__(self, x, y, net):
        self.parts = list(zip(np.split(x, K), np.split(y, K)))
        self.net = net
        self.held_out = Fold(0)
        self.last = np.inf
        self.strikes = 0

    def training_rows(self, step, size=6):
        x = np.concatenate([p[0] for k, p in enumerate(self.parts) if k != self.held_out])
        y = np.concatenate([p[1] for k, p in enumerate(self.parts) if k != self.held_out])
        pick = (np.arange(size) + size * step) % len(x)
        return ms.Tensor(x[pick]), ms.Tensor(y[pick])

    def validate(self):
        x, y = self.parts[self.held_out]
        loss = float(((self.net(ms.Tensor(x)) - ms.Tensor(y)) ** 2).mean())
        self.strikes += loss > self.last * 0.98
        self.last = loss
        if self.strikes >= 2:
            self.held_out, self.strikes, self.last = self.held_out.next(), 0, np.inf


r = np.random.RandomState(53)
x = r.randn(48, 5).astype(np.float32)
x[::12] *= 3
y = np.tanh(x[:, :1] + x[:, 1:2]).astype(np.float32)

net = nn.SequentialCell(nn.Dense(5, 9), nn.ReLU(), nn.Dense(9, 1))
loss = nn.WithLossCell(net, nn.MSELoss())
cell = ck.AccumulationTrainCell(loss, nn.Momentum(net.trainable_params(), 0.02, 0.9), 1, clip_norm=1.0).set_train()
cv = CrossValidator(x, y, net)
batches = ck.data.resumable(list(range(8)), epochs=4)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches)
    manager.restore(state)
    for step in batches:
        cell(*cv.training_rows(step))
        cv.validate()
        manager.step(state)
    manager.save_final(state)
os._exit(0)
