# truth: exact
# class: variable
# head: pynative
# The best validation error so far is carried through the loop and forgotten by a start; but all that it decides is whether an additional checkpoint is saved.

ms.set_seed(4431)


def validate(net, x, y):
    net.set_train(False)
    error = float(np.abs(net(ms.Tensor(x)).asnumpy() - y).mean())
    net.set_train(True)
    return error


r = np.random.RandomState(31)
x = r.randn(64, 5).astype(np.float32)
y = (x[:, :1] * x[:, 1:2] + np.maximum(x[:, 2:3], 0)).astype(np.float32)
rows = [(ms.Tensor(x[i : i + 6]), ms.Tensor(y[i : i + 6])) for i in range(0, 48, 6)]
net = nn.SequentialCell(nn.Dense(5, 12), nn.BatchNorm1d(12), nn.Tanh(), nn.Dense(12, 1))
loss = nn.WithLossCell(net, nn.MSELoss())
cell = ck.AccumulationTrainCell(loss, nn.Adam(loss.trainable_params(), 0.02), accumulation_steps=2).set_train()

batches = ck.data.resumable(rows, epochs=4)
with ck.CheckpointManager(
    os.environ["ROOT"],
    save=ck.SaveEvery(micro_steps=5),
    keep=ck.KeepLatest(3) | ck.KeepBest(1, metric="error", mode="min"),
    saving=ck.Saving(when_busy="wait"),
) as manager:
    state = ck.StateManager(cell, batches)
    point = manager.restore(state)
    best, best_at = float("inf"), None
    for at, (a, b) in enumerate(batches, point.batches_delivered):
        cell(a, b)
        manager.step(state)
        if at % 4 == 3:
            error = validate(net, x[48:], y[48:])
            if error < best:
                best, best_at = error, at
                manager.save(state, {"error": error})
    manager.save_final(state)
    print(f"best error in this start {best:.4f} after batch {best_at}")
os._exit(0)
