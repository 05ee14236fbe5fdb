# truth: differs
# class: attribute
# head: pynative_ops
# Automatic domain randomization: after every six results the width of the domain moves by their mean; the width is stored by ck.attributes, the results so far are not.

ms.set_seed(4354)


class Domain:
    def __init__(self, width, goal, size):
        self.width, self.goal, self.size = width, goal, size
        self.results = []

    def sample(self, rng):
        """friction, mass and delay of one world"""
        return 1 + self.width * rng.uniform(-1, 1, 3)

    def result(self, loss):
        self.results.append(loss)
        if len(self.results) == self.size:
            mean = sum(self.results) / self.size
            self.width = min(0.9, self.width * float(np.exp(0.5 * (self.goal - mean))))
            self.results.clear()
            print(f"the width is now {self.width:.3f}")


def simulate(world, start, force):
    friction, mass, delay = world
    speed = start[:, :1] + force / mass - 0.2 * friction * start[:, 1:2]
    return (start[:, 1:2] + delay * speed).astype(np.float32)


r = np.random.RandomState(54)
rows = [(r.randn(8, 2).astype(np.float32), r.randn(8, 1).astype(np.float32)) for _ in range(8)]
net = nn.SequentialCell(nn.Dense(3, 10), nn.Tanh(), nn.Dense(10, 1))
mse = nn.MSELoss()
opt = nn.Adam(net.trainable_params(), 0.02)
gradients = ms.value_and_grad(lambda x, y: mse(net(x), y), None, net.trainable_params())
rng = np.random.default_rng(54)
domain = Domain(width=0.1, goal=1.5, size=6)

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches, rng=rng, domain=ck.attributes(domain, "width"))
    manager.restore(state)
    for start, force in batches:
        world = domain.sample(rng)
        after = simulate(world, start, force)
        loss, grads = gradients(ms.Tensor(np.concatenate([start, force], 1)), ms.Tensor(after))
        opt(grads)
        domain.result(float(loss.asnumpy()))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
