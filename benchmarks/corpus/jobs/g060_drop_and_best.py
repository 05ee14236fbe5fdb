# truth: exact
# class: attribute
# head: imports_ops
# A GRU loop with remainder="drop", K = 3, an evaluation after each epoch and KeepBest by its metric; the best value is only printed.


ms.set_seed(57)
HIDDEN = 6


class GRUClassifier(nn.Cell):
    def __init__(self):
        super().__init__()
        self.gates = nn.Dense(3 + HIDDEN, 2 * HIDDEN)
        self.candidate = nn.Dense(3 + HIDDEN, HIDDEN)
        self.fc = nn.Dense(HIDDEN, 2)

    def construct(self, x):
        # x: (N, T, 3)
        h = ops.zeros((x.shape[0], HIDDEN), ms.float32)
        for t in range(x.shape[1]):
            xt = x[:, t]
            zr = ops.sigmoid(self.gates(ops.concat((xt, h), 1)))
            z, r = zr[:, :HIDDEN], zr[:, HIDDEN:]
            n = ops.tanh(self.candidate(ops.concat((xt, r * h), 1)))
            h = (1 - z) * n + z * h
        return self.fc(h)


def sequences(n, seed):
    rs = np.random.RandomState(seed)
    x = rs.randn(n, 4, 3).astype(np.float32)
    return x, (x[:, 0, 0] + x[:, -1, 1] > 0).astype(np.int32)


x, y = sequences(60, 1)
val_x, val_y = sequences(24, 2)
net = GRUClassifier()
cell = ck.AccumulationTrainCell(
    nn.WithLossCell(net, nn.CrossEntropyLoss()),
    nn.Adam(net.trainable_params(), learning_rate=0.03),
    accumulation_steps=3,
    remainder="drop",
)
cell.set_train()


def evaluate():
    cell.set_train(False)
    predicted = net(ms.Tensor(val_x)).asnumpy().argmax(1)
    cell.set_train(True)
    return float((predicted == val_y).mean())


loader = [(ms.Tensor(x[i : i + 6]), ms.Tensor(y[i : i + 6])) for i in range(0, 60, 6)]
batches = ck.data.resumable(loader, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"],
    save=ck.SaveEvery(micro_steps=5),
    keep=ck.KeepLatest(3) | ck.KeepBest(1, metric="accuracy", mode="max"),
    saving=ck.Saving(when_busy="wait"),
) as manager:
    state = ck.StateManager(cell, batches)
    done = manager.restore(state).batches_delivered
    best = 0.0
    for xb, yb in batches:
        loss = cell(xb, yb)
        done += 1
        manager.step(state, {"loss": loss})
        if done % len(loader) == 0:
            accuracy = evaluate()
            best = max(best, accuracy)
            print(f"epoch {batches.epoch}: accuracy {accuracy:.3f}, best of this start {best:.3f}")
            manager.save(state, {"accuracy": accuracy})
    manager.save_final(state)
os._exit(0)
