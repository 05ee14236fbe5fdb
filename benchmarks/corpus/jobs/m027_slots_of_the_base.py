# truth: differs
# class: attribute
# head: pynative_ops
# The state_dict is dict(vars(self)); but the base class has __slots__, and what it keeps there is not among the vars of the subclass.

ms.set_seed(4327)


class Smooth:
    """a small and fast exponential average"""

    __slots__ = ("decay", "level", "weight")

    def __init__(self, decay):
        self.decay, self.level, self.weight = decay, 0.0, 0.0

    def feed(self, value):
        self.level = self.decay * self.level + (1 - self.decay) * value
        self.weight = self.decay * self.weight + (1 - self.decay)
        return self.level / self.weight


class RateBySmoothLoss(Smooth):
    def __init__(self, base, decay=0.9):
        super().__init__(decay)
        self.base = base
        self.steps = 0
        self.lowest = float("inf")

    def rate(self, loss):
        self.steps += 1
        smooth = self.feed(loss)
        self.lowest = min(self.lowest, smooth)
        return self.base * min(2.0, loss / smooth)

    def state_dict(self):
        return dict(vars(self))

    def load_state_dict(self, state):
        vars(self).update(state)


r = np.random.RandomState(27)
rows = []
for _ in range(8):
    x = r.randn(8, 5).astype(np.float32)
    rows.append((ms.Tensor(x), ms.Tensor((x[:, :1] ** 2 + x[:, 3:4]).astype(np.float32))))
net = nn.SequentialCell(nn.Dense(5, 8), nn.Tanh(), nn.Dense(8, 1))
mse = nn.MSELoss()
opt = nn.Momentum(net.trainable_params(), 0.03, 0.9)
gradients = ms.value_and_grad(lambda x, y: mse(net(x), y), None, net.trainable_params())
control = RateBySmoothLoss(0.03)

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches, control=control)
    manager.restore(state)
    for x, y in batches:
        loss, grads = gradients(x, y)
        manager.fence()
        ops.assign(opt.learning_rate, ms.Tensor(control.rate(float(loss.asnumpy())), ms.float32))
        opt(grads)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
