# truth: exact
# class: attribute
# head: imports_parameter
# Activations are winsorized at a running 90% quantile that a stochastic step moves; it is a Parameter, the history is for a print.


ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(3133)


class Winsorize(nn.Cell):
    def __init__(self, q=0.9, step=0.05):
        super().__init__()
        self.q, self.step = q, step
        self.bound = Parameter(Tensor(0.5, ms.float32), name="bound", requires_grad=False)
        self.trace = []

    def construct(self, h):
        above = (ops.abs(ops.stop_gradient(h)) > self.bound).astype(ms.float32).mean()
        out = ops.maximum(ops.minimum(h, self.bound * 1.0), self.bound * -1.0)
        ops.assign_add(self.bound, self.step * (above - (1 - self.q)))
        self.trace.append(self.bound.asnumpy().item())
        return out


clip = Winsorize()
net = nn.SequentialCell(nn.Dense(4, 10), clip, nn.Dense(10, 1))
cell = ck.AccumulationTrainCell(
    nn.WithLossCell(net, nn.MSELoss()), nn.Momentum(net.trainable_params(), 0.03, 0.9), 3
).set_train()
r = np.random.RandomState(33)
rows = [(Tensor(a), Tensor(a[:, :1] + a[:, 1:2] ** 2)) for a in r.standard_t(3, (8, 6, 4)).astype(np.float32)]

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches)
    manager.restore(state)
    for x, y in batches:
        cell(x, y)
        manager.step(state)
    print("bounds", clip.trace[-3:])
    manager.save_final(state)
os._exit(0)
