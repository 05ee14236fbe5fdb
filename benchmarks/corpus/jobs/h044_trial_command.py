# truth: exact
# class: attribute
# head: imports_ops
# A backtracking line search: a step is a command that is tried, undone and tried with half the length, all within one batch.


ms.set_seed(92)


class Step:
    def __init__(self, params, grads):
        self.params, self.grads = params, grads
        self.origin = [ms.Tensor(p.asnumpy().copy()) for p in params]

    def do(self, length):
        for p, o, g in zip(self.params, self.origin, self.grads):
            ops.assign(p, o - length * g)

    def undo(self):
        for p, o in zip(self.params, self.origin):
            ops.assign(p, o)


def line_search(step, evaluate, loss, squared, length=1.0):
    for _ in range(8):
        step.do(length)
        if evaluate() <= loss - 0.3 * length * squared:
            return length
        step.undo()
        length *= 0.5
    return 0.0


r = np.random.RandomState(74)
rows = []
for _ in range(8):
    x = r.randn(8, 6).astype(np.float32)
    rows.append((ms.Tensor(x), ms.Tensor(np.sin(x[:, :1]).astype(np.float32))))
net = nn.SequentialCell(nn.Dense(6, 8), nn.Tanh(), nn.Dense(8, 1))
params = net.trainable_params()
mse = nn.MSELoss()
vg = ms.value_and_grad(lambda x, y: mse(net(x), y), None, net.trainable_params())

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net], batches)
    manager.restore(state)
    for x, y in batches:
        loss, grads = vg(x, y)
        squared = sum(float((g * g).sum().asnumpy()) for g in grads)
        manager.fence()
        taken = line_search(
            Step(params, grads), lambda: float(mse(net(x), y).asnumpy()), float(loss.asnumpy()), squared
        )
        manager.step(state)
        print("length", taken)
    manager.save_final(state)
os._exit(0)
