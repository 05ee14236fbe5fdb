# truth: exact
# class: iterator
# head: pynative_ops
# Sparse training (RigL): masks are Parameters of a cell in the list; every sixth batch, by the restored position, the smallest weights go and connections of largest gradient grow.

ms.set_seed(4457)


class Masks(nn.Cell):
    """one mask per matrix; weights that it does not cover are zero, but their gradients are known"""

    def __init__(self, params, density, seed):
        super().__init__()
        rng = np.random.default_rng(seed)
        self.masks = ms.ParameterTuple([self.first_mask(p, density, rng) for p in params])
        self.regrown = 0

    @staticmethod
    def first_mask(p, density, rng):
        alive = (rng.random(p.shape) < density).astype(np.float32)
        return ms.Parameter(alive, name=f"mask.{p.name}", requires_grad=False)

    def cover(self, params):
        for mask, p in zip(self.masks, params):
            ops.assign(p, p * mask)

    def rewire(self, params, grads, share):
        for mask, p, g in zip(self.masks, params, grads):
            m, w, slope = mask.asnumpy().ravel().copy(), p.asnumpy().ravel(), np.abs(g.asnumpy().ravel())
            count = int(share * m.sum())
            alive, empty = np.flatnonzero(m == 1), np.flatnonzero(m == 0)
            dropped = alive[np.argsort(np.abs(w[alive]), kind="stable")[:count]]
            grown = empty[np.argsort(-slope[empty], kind="stable")[:count]]
            m[dropped] = 0
            m[grown] = 1
            self.regrown += len(grown)
            ops.assign(mask, ms.Tensor(m.reshape(mask.shape)))


r = np.random.RandomState(57)
rows = []
for _ in range(8):
    x = r.randn(6, 8).astype(np.float32)
    rows.append((ms.Tensor(x), ms.Tensor((x[:, :1] * x[:, 1:2] + x[:, 7:]).astype(np.float32))))
net = nn.SequentialCell(nn.Dense(8, 16), nn.Tanh(), nn.Dense(16, 1))
matrices = [net[0].weight, net[2].weight]
masks = Masks(matrices, density=0.4, seed=457)
masks.cover(matrices)
opt = nn.Momentum(net.trainable_params(), 0.05, 0.9)
mse = nn.MSELoss()
gradients = ms.value_and_grad(lambda x, y: mse(net(x), y), None, net.trainable_params())
of_matrix = [next(i for i, p in enumerate(opt.parameters) if p.name == m.name) for m in matrices]

batches = ck.data.resumable(rows, epochs=4)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt, masks], batches)
    point = manager.restore(state)
    for at, (x, y) in enumerate(batches, point.batches_delivered):
        loss, grads = gradients(x, y)
        manager.fence()
        if at % 6 == 5:
            masks.rewire(matrices, [grads[i] for i in of_matrix], share=0.3 * (1 - at / 32))
        opt(grads)
        masks.cover(matrices)
        manager.step(state)
    manager.save_final(state)
print(masks.regrown, "connections were regrown in this start")
os._exit(0)
