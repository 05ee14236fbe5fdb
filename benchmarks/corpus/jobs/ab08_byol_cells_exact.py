# truth: exact
# class: attribute
# head: classes_6_rows



class BYOL(nn.Cell):
    def __init__(self):
        super().__init__()
        self.online = nn.SequentialCell(nn.Dense(6, 8), nn.ReLU(), nn.Dense(8, 4))
        self.target = nn.SequentialCell(nn.Dense(6, 8), nn.ReLU(), nn.Dense(8, 4))
        self.predictor = nn.Dense(4, 4)
        for a, b in zip(self.target.get_parameters(), self.online.get_parameters()):
            a.set_data(b.value().copy())
            a.requires_grad = False

    def construct(self, a, b):
        p = self.predictor(self.online(a))
        t = ops.stop_gradient(self.target(b))
        return ((p - t) ** 2).sum(-1).mean()

    def momentum_update(self, m=0.95):
        for a, b in zip(self.target.get_parameters(), self.online.get_parameters()):
            ops.assign(a, m * a + (1 - m) * b)


byol = BYOL()
opt = nn.Momentum(byol.trainable_params(), 0.02, 0.9)
grad_fn = ms.value_and_grad(byol, None, opt.parameters)
views = np.random.default_rng(3)
batches = ck.data.resumable(loader, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([byol, opt], batches, views=views)
    manager.restore(state)
    for x, _ in batches:
        a, b = (x + Tensor(views.normal(0, 0.1, x.shape).astype(np.float32)) for _ in range(2))
        _, grads = grad_fn(a, b)
        opt(grads)
        byol.momentum_update()
        manager.step(state)
    manager.save_final(state)
os._exit(0)
