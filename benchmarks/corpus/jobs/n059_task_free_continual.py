# truth: differs
# class: attribute
# head: imports_deque
# Task-free continual learning: importance and anchor of the weights are given by name; the detector that decides when to renew them, a window of losses, is not.


ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(4459)


class PlateauDetector:
    """says when the loss is steady: then the network knows something worth keeping"""

    def __init__(self, size, tolerance):
        self.losses, self.tolerance = deque(maxlen=size), tolerance

    def steady(self, loss):
        self.losses.append(loss)
        full = len(self.losses) == self.losses.maxlen
        if full and np.std(self.losses) < self.tolerance * np.mean(self.losses):
            self.losses.clear()
            return True
        return False


class Memory:
    """memory aware synapses: which weights matter, and what they were"""

    def __init__(self, params, strength):
        self.params, self.strength = params, strength
        self.importance = [np.zeros(p.shape, np.float32) for p in params]
        self.anchor = [p.asnumpy().copy() for p in params]

    def renew(self, grads):
        self.importance = [0.5 * i + np.abs(g.asnumpy()) for i, g in zip(self.importance, grads)]
        self.anchor = [p.asnumpy().copy() for p in self.params]

    def pulls(self):
        return [
            ms.Tensor((self.strength * i * (p.asnumpy() - a)).astype(np.float32))
            for i, p, a in zip(self.importance, self.params, self.anchor)
        ]


r = np.random.RandomState(59)
rows = []
for number in range(30):  # the target drifts from one column to the next
    x = r.randn(8, 5).astype(np.float32)
    share = number / 29
    y = (1 - share) * x[:, :1] + share * x[:, 1:2] * np.sign(x[:, 2:3])
    rows.append((ms.Tensor(x), ms.Tensor(y.astype(np.float32))))
net = nn.SequentialCell(nn.Dense(5, 12), nn.Tanh(), nn.Dense(12, 1))
opt = nn.Momentum(net.trainable_params(), 0.05, 0.5)
mse = nn.MSELoss()
gradients = ms.value_and_grad(lambda x, y: mse(net(x), y), None, net.trainable_params())
detector, memory = PlateauDetector(4, 0.8), Memory(net.trainable_params(), 0.5)

batches = ck.data.resumable(rows, epochs=1)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches, memory=ck.attributes(memory, "importance", "anchor"))
    manager.restore(state)
    for x, y in batches:
        loss, grads = gradients(x, y)
        if detector.steady(float(loss.asnumpy())):
            memory.renew(grads)
        opt(tuple(g + pull for g, pull in zip(grads, memory.pulls())))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
