# truth: differs
# class: data
# head: pynative
# As in detectron2, an endless sampler gives the numbers of the samples and iterations go from the restored one to the last; but the sampler begins anew at each start.

ms.set_seed(4433)


class TrainingSampler:
    """an endless stream of sample numbers: one permutation after the other"""

    def __init__(self, size, seed):
        self.size, self.seed = size, seed

    def __iter__(self):
        rng = np.random.default_rng(self.seed)
        while True:
            yield from rng.permutation(self.size).tolist()


class AspectRatioGrouped:
    """collects samples until there are enough of one orientation"""

    def __init__(self, sampler, wide, size):
        self.sampler, self.wide, self.size = sampler, wide, size

    def __iter__(self):
        groups = {False: [], True: []}
        for number in self.sampler:
            group = groups[bool(self.wide[number])]
            group.append(number)
            if len(group) == self.size:
                yield list(group)
                group.clear()


r = np.random.RandomState(33)
x = r.randn(40, 5).astype(np.float32)
y = (x[:, :1] * x[:, 1:2] + x[:, 2:3]).astype(np.float32)
net = nn.SequentialCell(nn.Dense(5, 10), nn.Tanh(), nn.Dense(10, 1))
opt = nn.Momentum(net.trainable_params(), 0.03, 0.9)
mse = nn.MSELoss()
gradients = ms.value_and_grad(lambda a, b: mse(net(a), b), None, net.trainable_params())
loader = iter(AspectRatioGrouped(TrainingSampler(40, seed=433), x[:, 0] > 0, 5))

with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt])
    point = manager.restore(state)
    for iteration in range(point.batches_delivered, 28):
        numbers = next(loader)
        loss, grads = gradients(ms.Tensor(x[numbers]), ms.Tensor(y[numbers]))
        opt(grads)
        state.count_delivered()
        manager.step(state)
        if iteration % 9 == 0:
            print(iteration, float(loss.asnumpy()))
    manager.save_final(state)
os._exit(0)
