# truth: differs
# class: attribute
# head: imports
# Soft cluster memberships are extra features; the clusters come from a warm-started MiniBatchKMeans of one's own.


ms.set_seed(23)


class MiniBatchKMeans:
    """partial_fit as in scikit-learn: centres move with a rate of 1 / count"""

    def __init__(self, n_clusters, random_state=0):
        self.n_clusters = n_clusters
        self.random_state = random_state

    def partial_fit(self, X):
        if not hasattr(self, "cluster_centers_"):
            pick = np.random.RandomState(self.random_state).permutation(len(X))[: self.n_clusters]
            self.cluster_centers_ = X[pick].astype(np.float64)
            self.counts_ = np.ones(self.n_clusters)
        nearest = ((X[:, None] - self.cluster_centers_) ** 2).sum(-1).argmin(1)
        for x, k in zip(X, nearest):
            self.counts_[k] += 1
            self.cluster_centers_[k] += (x - self.cluster_centers_[k]) / self.counts_[k]
        return self

    def transform(self, X):
        d = ((X[:, None] - self.cluster_centers_) ** 2).sum(-1)
        e = np.exp(-(d - d.min(1, keepdims=True)))
        return (e / e.sum(1, keepdims=True)).astype(np.float32)


r = np.random.RandomState(9)
centre = r.randint(0, 3, 80)
X = (r.randn(80, 6) * 0.6 + centre[:, None] * np.array([2, -1, 0, 1, 0, 0.5])).astype(np.float32)
y = centre.astype(np.int32)
rows = [(X[i : i + 10], y[i : i + 10]) for i in range(0, 80, 10)]

net = nn.SequentialCell(nn.Dense(6 + 3, 8), nn.ReLU(), nn.Dense(8, 3))
train = nn.TrainOneStepCell(
    nn.WithLossCell(net, nn.CrossEntropyLoss()), nn.Momentum(net.trainable_params(), 0.05, 0.9)
).set_train()
km = MiniBatchKMeans(n_clusters=3)
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(train, batches)
    manager.restore(state)
    for x, label in batches:
        membership = km.partial_fit(x).transform(x)
        train(ms.Tensor(np.hstack([x, membership])), ms.Tensor(label))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
