# truth: exact
# class: variable
# head: pynative
# A batch with an outlier is skipped with `continue`, before the update and before manager.step; whether it has one depends on the batch alone.

ms.set_seed(4330)


def usable(y, limit):
    return float(np.abs(y).max()) < limit


r = np.random.RandomState(30)
x = r.randn(8, 8, 5).astype(np.float32)
y = (x[..., :1] - x[..., 1:2] * x[..., 2:3]).astype(np.float32)
y[3, 2] = 40.0  # a broken sensor
rows = list(zip(x, y))
net = nn.SequentialCell(nn.Dense(5, 8), nn.Tanh(), nn.Dense(8, 1))
mse = nn.MSELoss()
opt = nn.Momentum(net.trainable_params(), 0.03, 0.9)
gradients = ms.value_and_grad(lambda x, y: mse(net(x), y), None, net.trainable_params())

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    skipped = trained = 0
    for x, y in batches:
        if not usable(y, 20.0):
            skipped += 1
            continue
        loss, grads = gradients(ms.Tensor(x), ms.Tensor(y))
        opt(grads)
        trained += 1
        manager.step(state)
    manager.save_final(state)
    print(f"this start trained {trained} batches and skipped {skipped}")
os._exit(0)
