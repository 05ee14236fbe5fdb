# truth: exact, may be named
# class: random
# head: pynative
# Two Generators, for noise and for masks, draw from one PCG64; one of them is given by name, and with it goes the bit generator that both share.

ms.set_seed(4140)

bits = np.random.PCG64(40)
noise, masks = np.random.Generator(bits), np.random.Generator(bits)


def augment(x):
    keep = masks.random(x.shape) > 0.15
    return ((x + 0.1 * noise.standard_normal(x.shape)) * keep).astype(np.float32)


r = np.random.RandomState(40)
rows = []
for _ in range(8):
    x = r.randn(8, 4).astype(np.float32)
    rows.append((x, ms.Tensor((x[:, :1] * x[:, 1:2]).astype(np.float32))))
net = nn.SequentialCell(nn.Dense(4, 8), nn.Tanh(), nn.Dense(8, 1))
loss_cell = nn.WithLossCell(net, nn.MSELoss())
cell = ck.AccumulationTrainCell(loss_cell, nn.Adam(net.trainable_params(), 0.02), accumulation_steps=4).set_train()

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches, noise=noise)
    manager.restore(state)
    for x, y in batches:
        cell(ms.Tensor(augment(x)), y)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
