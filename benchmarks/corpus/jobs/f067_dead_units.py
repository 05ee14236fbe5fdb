# truth: differs
# class: random
# head: imports_ops
# Dead units are counted by a forward hook in a NumPy array; a unit silent for long is drawn anew (ReDo).


ms.set_seed(48)
ms.set_context(mode=ms.PYNATIVE_MODE)


class ActivityMonitor:
    def __init__(self, layer, units):
        self.silent = np.zeros(units, np.int64)
        self.born = 0
        self.handle = layer.register_forward_hook(self.hook)

    def hook(self, cell, inputs, output):
        mean = np.abs(output.asnumpy()).mean(0)
        quiet = mean <= np.quantile(mean, 0.25)
        self.silent = np.where(quiet, self.silent + 1, 0)

    def revive(self, dense_in, limit=4):
        dead = np.flatnonzero(self.silent >= limit)
        if len(dead):
            w, b = dense_in.weight.asnumpy().copy(), dense_in.bias.asnumpy().copy()
            for unit in dead:
                w[unit] = np.random.RandomState(unit).randn(w.shape[1]) * 0.3
                b[unit] = 0
                self.born += 1
            ops.assign(dense_in.weight, ms.Tensor(w))
            ops.assign(dense_in.bias, ms.Tensor(b))
            self.silent[dead] = 0


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Dense(6, 12)
        self.act = nn.ReLU()
        self.fc2 = nn.Dense(12, 2)

    def construct(self, x):
        return self.fc2(self.act(self.fc1(x)))


net = Net()
monitor = ActivityMonitor(net.act, 12)
optimizer = nn.Momentum(net.trainable_params(), 0.05, 0.9)
cell = ck.AccumulationTrainCell(nn.WithLossCell(net, nn.MSELoss()), optimizer, 1).set_train()
r = np.random.RandomState(48)
rows = [(ms.Tensor(x), ms.Tensor(np.abs(x[:, :2]))) for x in r.randn(8, 6, 6).astype(np.float32)]
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches)
    manager.restore(state)
    for x, y in batches:
        cell(x, y)
        manager.fence()
        monitor.revive(net.fc1)
        manager.step(state)
    manager.save_final(state)
print(monitor.born, "units were drawn anew")
os._exit(0)
