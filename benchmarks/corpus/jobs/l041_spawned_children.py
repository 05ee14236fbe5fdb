# truth: differs
# class: random
# head: pynative
# One Generator is given by name; the noise is drawn by the two children that it spawned before, which have streams and positions of their own.

ms.set_seed(4141)


class Augment:
    def __init__(self, rng):
        self.jitter, self.drop = rng.spawn(2)

    def __call__(self, x):
        keep = self.drop.random(x.shape) > 0.15
        return ((x + self.jitter.normal(0, 0.1, x.shape)) * keep).astype(np.float32)


r = np.random.RandomState(41)
rows = []
for _ in range(8):
    x = r.randn(8, 4).astype(np.float32)
    rows.append((x, ms.Tensor((x[:, :1] * x[:, 1:2]).astype(np.float32))))
net = nn.SequentialCell(nn.Dense(4, 8), nn.Tanh(), nn.Dense(8, 1))
mse = nn.MSELoss()
opt = nn.Momentum(net.trainable_params(), 0.03, 0.9)
gradients = ms.value_and_grad(lambda x, y: mse(net(x), y), None, net.trainable_params())
rng = np.random.default_rng(41)
augment = Augment(rng)

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches, rng=rng)
    manager.restore(state)
    for x, y in batches:
        label_noise = 0.01 * rng.standard_normal()
        loss, grads = gradients(ms.Tensor(augment(x)), y + label_noise)
        opt(grads)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
