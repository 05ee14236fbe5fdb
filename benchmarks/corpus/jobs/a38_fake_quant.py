# truth: differs
# class: attribute
# head: regression_8_arrays

rows = [(Tensor(X[i * 8 : i * 8 + 8]), Tensor(Y[i * 8 : i * 8 + 8])) for i in range(8)]
loss_fn = nn.MSELoss()


class Observer(nn.Cell):
    def __init__(self):
        super().__init__()
        self.lo, self.hi = 0.0, 0.0

    def construct(self, x):
        if self.training:
            self.lo = 0.9 * self.lo + 0.1 * float(x.min())
            self.hi = 0.9 * self.hi + 0.1 * float(x.max())
        return ops.clamp(x, self.lo, self.hi)


obs = Observer()
fc = nn.Dense(8, 1)
opt = nn.Adam(fc.trainable_params(), 0.01)
obs.set_train()


def fwd(x, y):
    return loss_fn(fc(x), y)


gf = ms.value_and_grad(fwd, None, opt.parameters)
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([fc, opt, obs], batches)
    point = manager.restore(state)
    for x, y in batches:
        l, gr = gf(obs(x), y)
        opt(gr)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
