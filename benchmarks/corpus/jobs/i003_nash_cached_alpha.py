# truth: differs
# class: attribute
# head: imports
# Nash-MTL with update_weights_every=4: task weights are solved from the Gram matrix every fourth step and reused from self.prvs_alpha in between.


ms.set_seed(303)


class NashMTL:
    def __init__(self, n_tasks, update_weights_every=4, optim_niter=20):
        self.n_tasks = n_tasks
        self.update_weights_every = update_weights_every
        self.optim_niter = optim_niter
        self.prvs_alpha = np.ones(n_tasks, np.float32)

    def solve(self, gram):
        alpha = self.prvs_alpha.copy()
        for _ in range(self.optim_niter):
            alpha = np.sqrt(alpha / (gram @ alpha + 1e-3)).clip(0.05, 5)
        return alpha.astype(np.float32)

    def get_weights(self, step, grads):
        if step % self.update_weights_every == 0:
            flat = np.stack([np.concatenate([g.asnumpy().ravel() for g in gs]) for gs in grads])
            gram = flat @ flat.T
            self.prvs_alpha = self.solve(np.abs(gram) / (np.abs(gram).mean() + 1e-8))
        return self.prvs_alpha


class TwoHeads(nn.Cell):
    def __init__(self):
        super().__init__()
        self.trunk = nn.SequentialCell(nn.Dense(5, 8), nn.Tanh())
        self.heads = nn.CellList([nn.Dense(8, 1), nn.Dense(8, 1), nn.Dense(8, 1)])

    def construct(self, x, task):
        return self.heads[task](self.trunk(x))


net = TwoHeads()
mse = nn.MSELoss()
opt = nn.Adam(net.trainable_params(), 0.01)
per_task = [ms.value_and_grad(lambda x, y, t=t: mse(net(x, t), y), None, net.trainable_params()) for t in range(3)]
r = np.random.RandomState(11)
data = []
for _ in range(8):
    x = r.randn(6, 5)
    ys = [x[:, :1] * 3, np.sin(x[:, 1:2]), x[:, 2:3] * x[:, 3:4] * 0.2]
    data.append(tuple(a.astype(np.float32) for a in [x, *ys]))

weighting = NashMTL(3)
batches = ck.data.resumable(data, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches)
    point = manager.restore(state)
    for step, (x, *ys) in enumerate(batches, point.batches_delivered):
        grads = [vg(ms.Tensor(x), ms.Tensor(y))[1] for vg, y in zip(per_task, ys)]
        alpha = weighting.get_weights(step, grads)
        opt(tuple(sum(float(a) * g for a, g in zip(alpha, gs)) for gs in zip(*grads)))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
