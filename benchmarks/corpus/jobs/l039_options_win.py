# truth: refused
# class: attribute
# head: pynative
# load_state_dict lets what the script has set win over what was stored (setdefault per name), and __init__ has set everything.

ms.set_seed(4139)


class InputScaler:
    def __init__(self, momentum=0.9, eps=1e-5):
        self.momentum, self.eps = momentum, eps
        self.mean, self.square = 0.0, 1.0

    def __call__(self, x):
        m = self.momentum
        self.mean = m * self.mean + (1 - m) * float(x.mean())
        self.square = m * self.square + (1 - m) * float((x * x).mean())
        return (x - self.mean) / (self.square - self.mean**2 + self.eps) ** 0.5

    def state_dict(self):
        return dict(vars(self))

    def load_state_dict(self, state):
        """options of this start take precedence over those of the checkpoint"""
        for name, value in state.items():
            vars(self).setdefault(name, value)


r = np.random.RandomState(39)
rows = []
for _ in range(8):
    x = (1.5 + 2 * r.randn(8, 4)).astype(np.float32)
    rows.append((x, ms.Tensor(np.sin(x[:, :1]).astype(np.float32))))
net = nn.SequentialCell(nn.Dense(4, 8), nn.Tanh(), nn.Dense(8, 1))
loss_cell = nn.WithLossCell(net, nn.MSELoss())
cell = ck.AccumulationTrainCell(loss_cell, nn.Adam(net.trainable_params(), 0.02), accumulation_steps=3).set_train()
scaler = InputScaler()

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches, scaler=scaler)
    manager.restore(state)
    for x, y in batches:
        cell(ms.Tensor(scaler(x).astype(np.float32)), y)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
