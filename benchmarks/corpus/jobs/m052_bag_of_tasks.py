# truth: differs
# class: attribute
# head: pynative_ops
# Meta-learning (Reptile) with tasks from a bag: all six are drawn before any comes again; the generator is given by name, what is left in the bag is not.

ms.set_seed(4352)


class Bag:
    """draws without replacement and fills itself again when it is empty"""

    def __init__(self, items, rng):
        self.items, self.rng = tuple(items), rng
        self._inside = []

    def draw(self):
        if not self._inside:
            self._inside = list(self.items)
            self.rng.shuffle(self._inside)
        return self._inside.pop()


def task(amplitude, phase):
    def targets(x):
        return (amplitude * np.sin(x + phase)).astype(np.float32)

    return targets


TASKS = [task(amplitude, phase) for amplitude in (0.5, 1.0, 1.5) for phase in (0.0, 1.5)]


def adapt(weights, gradients, x, y, steps=3, rate=0.05):
    for _ in range(steps):
        loss, grads = gradients(x, y)
        for p, g in zip(weights, grads):
            ops.assign(p, p - rate * g)
    return float(loss.asnumpy())


r = np.random.RandomState(52)
rows = [((r.rand(8, 1) * 6 - 3).astype(np.float32),) for _ in range(8)]
net = nn.SequentialCell(nn.Dense(1, 10), nn.Tanh(), nn.Dense(10, 1))
weights = net.trainable_params()
mse = nn.MSELoss()
gradients = ms.value_and_grad(lambda x, y: mse(net(x), y), None, weights)
rng = np.random.default_rng(52)
bag = Bag(range(len(TASKS)), rng)

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net], batches, rng=rng)
    manager.restore(state)
    for (x,) in batches:
        number = bag.draw()
        manager.fence()
        before = [p.asnumpy().copy() for p in weights]
        loss = adapt(weights, gradients, ms.Tensor(x), ms.Tensor(TASKS[number](x)))
        for p, old in zip(weights, before):
            ops.assign(p, 0.5 * p + 0.5 * ms.Tensor(old))
        print(f"task {number}: {loss:.4f}")
        manager.step(state)
    manager.save_final(state)
os._exit(0)
