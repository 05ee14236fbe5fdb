# truth: differs
# class: random
# head: pynative
# Random numbers are drawn in blocks of 32 and handed out one by one; the generator is given by name, what is left of the block is not.

ms.set_seed(4329)


class Uniforms:
    """numbers from [0, 1), drawn in blocks, because a call for each would be slow"""

    def __init__(self, rng, block=32):
        self.rng, self.block = rng, block
        self.left = []

    def __call__(self):
        if not self.left:
            self.left = self.rng.random(self.block).tolist()
        return self.left.pop()


def cutout(x, uniform):
    """zeroes one feature of some rows, chosen by the numbers"""
    x = x.copy()
    for row in x:
        if uniform() < 0.5:
            row[int(uniform() * len(row))] = 0
    return x


r = np.random.RandomState(29)
rows = []
for _ in range(8):
    x = r.randn(6, 6).astype(np.float32)
    rows.append((x, ms.Tensor(x.sum(1, keepdims=True) / 2)))
net = nn.SequentialCell(nn.Dense(6, 8), nn.ReLU(), nn.Dense(8, 1))
mse = nn.MSELoss()
opt = nn.Adam(net.trainable_params(), 0.02)
gradients = ms.value_and_grad(lambda x, y: mse(net(x), y), None, net.trainable_params())
rng = np.random.default_rng(29)
uniform = Uniforms(rng)

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches, rng=rng)
    manager.restore(state)
    for x, y in batches:
        loss, grads = gradients(ms.Tensor(cutout(x, uniform)), y)
        opt(grads)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
