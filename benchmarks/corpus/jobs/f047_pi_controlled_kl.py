# truth: differs
# class: attribute
# head: imports
# The weight of a bottleneck penalty is held at a set point by a PI controller with a property and wind-up protection.


ms.set_seed(58)


class PIController:
    def __init__(self, set_point, kp=0.5, ki=0.05, low=0.0, high=2.0):
        self.set_point, self.kp, self.ki = set_point, kp, ki
        self.low, self.high = low, high
        self.__integral = 0.0
        self.__output = low

    @property
    def beta(self):
        return self.__output

    @beta.setter
    def beta(self, measured):
        error = measured - self.set_point
        candidate = self.__integral + self.ki * error
        raw = self.kp * error + candidate
        self.__output = min(self.high, max(self.low, raw))
        if self.__output == raw:
            self.__integral = candidate


class Bottleneck(nn.Cell):
    def __init__(self):
        super().__init__()
        self.enc = nn.Dense(8, 4)
        self.dec = nn.Dense(4, 8)

    def penalty(self, x):
        return (self.enc(x) ** 2).mean()

    def construct(self, x, beta):
        z = self.enc(x)
        return ((self.dec(z) - x) ** 2).mean() + beta * (z * z).mean()


net = Bottleneck()
optimizer = nn.Momentum(net.trainable_params(), 0.1, 0.9)
cell = ck.AccumulationTrainCell(net, optimizer, 1, clip_norm=1.0).set_train()
pi = PIController(set_point=0.05)
rows = [ms.Tensor(x) for x in np.random.RandomState(58).randn(10, 4, 8).astype(np.float32)]
batches = ck.data.resumable(rows, epochs=3)

with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches)
    manager.restore(state)
    for x in batches:
        pi.beta = float(net.penalty(x))
        cell(x, ms.Tensor(pi.beta, ms.float32))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
