# truth: differs
# class: attribute
# head: pynative
# A host of plugins is given by name; its state_dict has one entry per class name, and two plugins are of the same class.

ms.set_seed(4138)


class RunningScale:
    def __init__(self, column, decay):
        self.column, self.decay, self.scale = column, decay, 1.0

    def __call__(self, x):
        size = float(np.abs(x[:, self.column]).mean())
        self.scale = self.decay * self.scale + (1 - self.decay) * size
        x[:, self.column] /= self.scale
        return x

    def state_dict(self):
        return {"scale": self.scale}

    def load_state_dict(self, state):
        self.scale = state["scale"]


class Host:
    def __init__(self, *plugins):
        self.plugins = plugins

    def __call__(self, x):
        x = x.copy()
        for plugin in self.plugins:
            x = plugin(x)
        return x

    def state_dict(self):
        return {type(p).__name__: p.state_dict() for p in self.plugins}

    def load_state_dict(self, state):
        for p in self.plugins:
            p.load_state_dict(state[type(p).__name__])


r = np.random.RandomState(38)
rows = []
for _ in range(8):
    x = (r.randn(8, 4) * [1, 5, 0.3, 1]).astype(np.float32)
    rows.append((x, ms.Tensor((x[:, :1] + 0.2 * x[:, 1:2] - 3 * x[:, 2:3]).astype(np.float32))))
net = nn.SequentialCell(nn.Dense(4, 8), nn.Tanh(), nn.Dense(8, 1))
loss_cell = nn.WithLossCell(net, nn.MSELoss())
cell = ck.AccumulationTrainCell(loss_cell, nn.Adam(net.trainable_params(), 0.02), accumulation_steps=2).set_train()
host = Host(RunningScale(1, 0.8), RunningScale(2, 0.9))

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches, host=host)
    manager.restore(state)
    for x, y in batches:
        cell(ms.Tensor(host(x)), y)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
