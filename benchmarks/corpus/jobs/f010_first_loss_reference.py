# truth: differs
# class: variable
# head: imports_ops
# Multi-task weights relative to each task's first loss, which a dict remembers with setdefault at the first batch seen.


ms.set_seed(3)
cfg = dict(lr=0.03, alpha=1.5, epochs=4, tasks=("reg", "cls"), reference={})


class TwoHeads(nn.Cell):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Dense(6, 10, activation="tanh")
        self.reg = nn.Dense(10, 1)
        self.cls = nn.Dense(10, 3)

    def losses(self, x, r, c):
        h = self.trunk(x)
        return ((self.reg(h) - r) ** 2).mean(), ops.cross_entropy(self.cls(h), c)

    def construct(self, x, r, c, wr, wc):
        lr_, lc = self.losses(x, r, c)
        return wr * lr_ + wc * lc


def make_data():
    rs = np.random.RandomState(10)
    out = []
    for _ in range(7):
        x = rs.randn(6, 6).astype(np.float32)
        out.append((ms.Tensor(x), ms.Tensor(3 * x[:, :1]), ms.Tensor(np.argmax(x[:, :3], 1).astype(np.int32))))
    return out


def task_weights(losses):
    ratio = {}
    for task, value in zip(cfg["tasks"], losses):
        first = cfg["reference"].setdefault(task, value)
        ratio[task] = (value / first) ** cfg["alpha"]
    s = sum(ratio.values())
    return [len(ratio) * ratio[t] / s for t in cfg["tasks"]]


net = TwoHeads()
cell = ck.AccumulationTrainCell(net, nn.Adam(net.trainable_params(), cfg["lr"]), 2)
cell.set_train(True)
batches = ck.data.resumable(make_data(), epochs=cfg["epochs"])
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches)
    manager.restore(state)
    for x, r, c in batches:
        wr, wc = task_weights([float(v) for v in net.losses(x, r, c)])
        cell(x, r, c, ms.Tensor(wr, ms.float32), ms.Tensor(wc, ms.float32))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
