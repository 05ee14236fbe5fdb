# truth: exact, may be named
# class: random
# head: pynative
# Input noise comes from a PCG64 that each start makes anew and advances by twelve numbers per batch that was delivered before; each batch draws exactly twelve.

ms.set_seed(4422)
ROWS, WIDTH = 4, 3


def noise_stream(seed, batches_before):
    bits = np.random.PCG64(seed)
    bits.advance(batches_before * ROWS * WIDTH)  # random() takes one number of 64 bits per value
    return np.random.Generator(bits)


r = np.random.RandomState(22)
rows = []
for _ in range(9):
    x = r.randn(ROWS, WIDTH).astype(np.float32)
    rows.append((x, ms.Tensor((x[:, :1] * x[:, 1:2] + x[:, 2:3]).astype(np.float32))))
net = nn.SequentialCell(nn.Dense(WIDTH, 8), nn.Tanh(), nn.Dense(8, 1))
opt = nn.Adam(net.trainable_params(), 0.02)
mse = nn.MSELoss()
gradients = ms.value_and_grad(lambda x, y: mse(net(x), y), None, net.trainable_params())

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches)
    point = manager.restore(state)
    rng = noise_stream(422, point.batches_delivered)
    for x, y in batches:
        noise = 0.4 * (rng.random((ROWS, WIDTH)) - 0.5)
        loss, grads = gradients(ms.Tensor((np.asarray(x) + noise).astype(np.float32)), y)
        opt(grads)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
