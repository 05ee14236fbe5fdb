# truth: exact
# class: random
# head: imports_ops
# Weights live on a coarse grid: every update is rounded stochastically with a generator that is given by name.


ms.set_seed(80)
GRID = 2.0**-7


class StochasticRounder:
    def __init__(self, params, rng, grid=GRID):
        self.params, self.rng, self.grid = params, rng, grid

    def __call__(self):
        for p in self.params:
            scaled = p.asnumpy().astype(np.float64) / self.grid
            low = np.floor(scaled)
            up = self.rng.random(scaled.shape) < (scaled - low)
            ops.assign(p, ms.Tensor(((low + up) * self.grid).astype(np.float32)))


class ConvRegressor(nn.Cell):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 4, 3, pad_mode="same", has_bias=True)
        self.conv2 = nn.Conv2d(4, 4, 3, stride=2, pad_mode="same", has_bias=True)
        self.out = nn.Dense(4, 1)

    def construct(self, x):
        h = ops.relu(self.conv2(ops.relu(self.conv1(x))))
        return self.out(h.mean((2, 3)))


def batches_of(seed, n=8, size=6):
    rs = np.random.RandomState(seed)
    for _ in range(n):
        x = rs.rand(size, 1, 6, 6).astype(np.float32)
        yield ms.Tensor(x), ms.Tensor(x.max((1, 2, 3))[:, None].copy())


def main():
    net = ConvRegressor()
    loss_fn = nn.MSELoss()
    opt = nn.Momentum(net.trainable_params(), learning_rate=0.05, momentum=0.9)
    vg = ms.value_and_grad(lambda x, y: loss_fn(net(x), y), None, net.trainable_params())
    rng = np.random.Generator(np.random.Philox(123))
    rounder = StochasticRounder(net.trainable_params(), rng)
    data = ck.data.resumable(list(batches_of(4)), epochs=3)
    with ck.CheckpointManager(
        os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
    ) as manager:
        state = ck.StateManager([net, opt], data, rounding_rng=rng)
        manager.restore(state)
        for x, y in data:
            manager.fence()
            loss, grads = vg(x, y)
            opt(grads)
            rounder()
            manager.step(state, {"loss": loss})
        manager.save_final(state)


if __name__ == "__main__":
    main()
    os._exit(0)
