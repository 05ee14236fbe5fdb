# truth: exact
# class: attribute
# head: pynative
# The same base class without private attributes in its state; here the private ones are derived from the public ones before each use.

ms.set_seed(4160)


class Stateful:
    """public attributes are state, private ones are not"""

    def state_dict(self):
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}

    def load_state_dict(self, state):
        vars(self).update(state)


class Whitening(Stateful):
    def __init__(self, width, decay):
        self.decay, self.steps = decay, 0
        self.mean, self.cov = np.zeros(width), np.eye(width)
        self._factor, self._factor_of = None, -1

    def __call__(self, x):
        x = x.astype(np.float64)
        self.steps += 1
        self.mean = self.decay * self.mean + (1 - self.decay) * x.mean(0)
        centered = x - self.mean
        self.cov = self.decay * self.cov + (1 - self.decay) * (centered.T @ centered) / len(x)
        return (centered @ self.factor()).astype(np.float32)

    def factor(self):
        """inverse Cholesky factor of the present covariance"""
        if self._factor_of != self.steps:
            self._factor = np.linalg.inv(np.linalg.cholesky(self.cov)).T
            self._factor_of = self.steps
        return self._factor


r = np.random.RandomState(60)
mix = r.randn(4, 4)
rows = []
for _ in range(8):
    x = r.randn(10, 4)
    rows.append(((x @ mix + 1).astype(np.float32), ms.Tensor((x[:, :1] * x[:, 1:2]).astype(np.float32))))
net = nn.SequentialCell(nn.Dense(4, 8), nn.Tanh(), nn.Dense(8, 1))
loss_cell = nn.WithLossCell(net, nn.MSELoss())
cell = ck.AccumulationTrainCell(loss_cell, nn.Adam(net.trainable_params(), 0.02), accumulation_steps=4).set_train()
whitening = Whitening(4, 0.9)

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches, whitening=whitening)
    manager.restore(state)
    for x, y in batches:
        cell(ms.Tensor(whitening(x)), y)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
