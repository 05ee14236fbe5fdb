# truth: exact
# class: attribute
# head: imports
# A scaler with partial_fit as in scikit-learn; mean_, var_ and n_samples_seen_ are given by name with ck.attributes.


ms.set_seed(18)


class StandardScaler:
    def __init__(self, n_features, eps=1e-3):
        self.eps = eps
        self.mean_ = np.zeros(n_features)
        self.var_ = np.ones(n_features)
        self.n_samples_seen_ = 0

    def partial_fit(self, X):
        n, m = self.n_samples_seen_, len(X)
        mean, var = X.mean(0, dtype=np.float64), X.var(0, dtype=np.float64)
        total = n + m
        delta = mean - self.mean_
        self.var_ = (n * self.var_ + m * var) / total + delta**2 * n * m / total**2
        self.mean_ = self.mean_ + delta * m / total
        self.n_samples_seen_ = total
        return self

    def transform(self, X):
        return ((X - self.mean_) / np.sqrt(self.var_ + self.eps)).astype(np.float32)


rng = np.random.default_rng(8)
X = (rng.normal(size=(64, 7)) * 3 + 1).astype(np.float32)
y = (X[:, 2] > X[:, 3]).astype(np.int32)
rows = [(X[i : i + 8], y[i : i + 8]) for i in range(0, 64, 8)]

net = nn.SequentialCell(nn.Dense(7, 8), nn.ReLU(), nn.Dense(8, 2))
cell = ck.AccumulationTrainCell(
    nn.WithLossCell(net, nn.CrossEntropyLoss()), nn.Adam(net.trainable_params(), 0.01), 3
).set_train()
scaler = StandardScaler(7)

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches, scaler=ck.attributes(scaler, "mean_", "var_", "n_samples_seen_"))
    manager.restore(state)
    for x, label in batches:
        cell(ms.Tensor(scaler.partial_fit(x).transform(x)), ms.Tensor(label))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
