# truth: differs
# class: random
# head: pynative
# At a start the generator is put forward by one draw per delivered batch; but the loop draws again when a perturbation has an outlier, and these draws are not repeated.

ms.set_seed(4423)
WIDTH = 8


def draw(rng):
    return rng.normal(size=WIDTH)


def perturbation(rng, limit=1.8):
    """a normal vector without outliers"""
    vector = draw(rng)
    while np.abs(vector).max() > limit:
        vector = draw(rng)
    return 0.3 * vector


r = np.random.RandomState(23)
rows = []
for _ in range(8):
    x = r.randn(6, WIDTH).astype(np.float32)
    rows.append((x, ms.Tensor((x[:, :1] - x[:, 1:2] * x[:, 2:3]).astype(np.float32))))
net = nn.SequentialCell(nn.Dense(WIDTH, 10), nn.ReLU(), nn.Dense(10, 1))
opt = nn.Momentum(net.trainable_params(), 0.03, 0.9)
mse = nn.MSELoss()
gradients = ms.value_and_grad(lambda x, y: mse(net(x), y), None, net.trainable_params())

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches)
    point = manager.restore(state)
    rng = np.random.default_rng(423)
    for _ in range(point.batches_delivered):
        draw(rng)
    for x, y in batches:
        moved = np.asarray(x) + perturbation(rng)
        loss, grads = gradients(ms.Tensor(moved.astype(np.float32)), y)
        opt(grads)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
