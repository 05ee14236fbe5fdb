# truth: differs
# class: attribute
# head: pynative
# A physics-informed network with learning-rate annealing (Wang et al.): the weight of the boundary follows the ratio of gradients as a moving average in the trainer.

ms.set_seed(4456)
H = 1e-2


class Field(nn.Cell):
    def __init__(self):
        super().__init__()
        self.body = nn.SequentialCell(nn.Dense(1, 12), nn.Tanh(), nn.Dense(12, 1))

    def construct(self, t):
        return self.body(t)


class Trainer:
    """u' = -2 u + sin(3 t), u(0) = 1, with central differences"""

    def __init__(self, net, opt, decay):
        self.net, self.opt, self.decay = net, opt, decay
        self.boundary_weight = 1.0
        weights = net.trainable_params()
        self.of_residual = ms.value_and_grad(self.residual, None, weights)
        self.of_boundary = ms.value_and_grad(self.boundary, None, weights)

    def residual(self, t, forcing):
        slope = (self.net(t + H) - self.net(t - H)) / (2 * H)
        return ((slope + 2 * self.net(t) - forcing) ** 2).mean()

    def boundary(self, t0, u0):
        return ((self.net(t0) - u0) ** 2).mean()

    def step(self, t, forcing, t0, u0):
        r_loss, r_grads = self.of_residual(t, forcing)
        b_loss, b_grads = self.of_boundary(t0, u0)
        largest = max(float(np.abs(g.asnumpy()).max()) for g in r_grads)
        mean = float(np.mean([np.abs(g.asnumpy()).mean() for g in b_grads]))
        ratio = min(50.0, largest / (mean + 1e-8))
        self.boundary_weight = self.decay * self.boundary_weight + (1 - self.decay) * ratio
        self.opt(tuple(r + self.boundary_weight * b for r, b in zip(r_grads, b_grads)))
        return float(r_loss.asnumpy()), float(b_loss.asnumpy())


r = np.random.RandomState(56)
rows = []
for _ in range(8):
    t = r.uniform(0, 2, (10, 1)).astype(np.float32)
    rows.append((ms.Tensor(t), ms.Tensor(np.sin(3 * t))))
net = Field()
trainer = Trainer(net, nn.Adam(net.trainable_params(), 0.005), decay=0.9)
t0, u0 = ms.Tensor(np.zeros((1, 1), np.float32)), ms.Tensor(np.ones((1, 1), np.float32))

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, trainer.opt], batches)
    manager.restore(state)
    for t, forcing in batches:
        losses = trainer.step(t, forcing, t0, u0)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
