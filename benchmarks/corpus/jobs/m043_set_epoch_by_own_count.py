# truth: refused
# class: data
# head: pynative
# A sampler in the style of PyTorch wants set_epoch(); the loop calls it after every eighth batch, by a count that each start begins at one.

ms.set_seed(4343)


class EpochShuffler:
    """the order follows from seed and epoch; the batch itself is sorted, for a cache of the decoder"""

    def __init__(self, count, seed):
        self.count, self.seed, self.epoch = count, seed, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        return iter(np.random.default_rng((self.seed, self.epoch)).permutation(self.count).tolist())


class Batches:
    def __init__(self, x, y, sampler, size):
        self.x, self.y, self.sampler, self.size = x, y, sampler, size

    def __len__(self):
        return len(self.x) // self.size

    def __iter__(self):
        numbers = list(self.sampler)
        for i in range(len(self)):
            rows = sorted(numbers[i * self.size : (i + 1) * self.size])
            yield self.x[rows], self.y[rows]


r = np.random.RandomState(43)
x = r.randn(40, 4).astype(np.float32)
y = (x[:, :1] ** 2 - x[:, 1:2]).astype(np.float32)
net = nn.SequentialCell(nn.Dense(4, 8), nn.Tanh(), nn.Dense(8, 1))
mse = nn.MSELoss()
opt = nn.Momentum(net.trainable_params(), 0.03, 0.9)
gradients = ms.value_and_grad(lambda x, y: mse(net(x), y), None, net.trainable_params())
sampler = EpochShuffler(len(x), seed=443)
loader = Batches(x, y, sampler, 5)

batches = ck.data.resumable(loader, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    for number, (a, b) in enumerate(batches, 1):
        loss, grads = gradients(ms.Tensor(a), ms.Tensor(b))
        opt(grads)
        if number % len(loader) == 0:
            sampler.set_epoch(number // len(loader))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
