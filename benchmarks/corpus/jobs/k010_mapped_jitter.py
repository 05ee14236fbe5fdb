# truth: differs
# class: random
# head: imports
# An object with a generator of its own is made in a call of map() around the batches.


ms.set_seed(310)


class Jitter:
    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def __call__(self, row):
        x, y = row
        return x + self.rng.normal(0, 0.1, x.shape).astype(np.float32), y


net = nn.SequentialCell(nn.Dense(6, 8), nn.Tanh(), nn.Dense(8, 1))
mse = nn.MSELoss()
opt = nn.Momentum(net.trainable_params(), learning_rate=0.02, momentum=0.9)
vg = ms.value_and_grad(lambda x, y: mse(net(x), y), None, net.trainable_params())
r = np.random.RandomState(310)
rows = [(r.randn(6, 6).astype(np.float32), r.randn(6, 1).astype(np.float32)) for _ in range(8)]

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    for x, y in map(Jitter(5), batches):
        loss, grads = vg(ms.Tensor(x), ms.Tensor(y))
        opt(grads)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
