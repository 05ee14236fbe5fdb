# truth: differs
# class: attribute
# head: pynative
# DeepCluster: at the first batch of each epoch all rows get pseudo-labels by k-means of the present features; a start in mid-epoch makes them anew from other weights.

ms.set_seed(3535)
ROWS, WIDTH, CLUSTERS, BATCH = 48, 6, 4, 6


class Network(nn.Cell):
    def __init__(self):
        super().__init__()
        self.features = nn.SequentialCell(nn.Dense(WIDTH, 12), nn.ReLU(), nn.Dense(12, 5), nn.Tanh())
        self.head = nn.Dense(5, CLUSTERS)

    def construct(self, x):
        return self.head(self.features(x))


def k_means(features, rounds=5):
    centres = features[:: len(features) // CLUSTERS][:CLUSTERS].copy()
    for _ in range(rounds):
        distances = ((features[:, None] - centres[None]) ** 2).sum(-1)
        nearest = distances.argmin(1)
        for c in range(CLUSTERS):
            if (nearest == c).any():
                centres[c] = features[nearest == c].mean(0)
    return nearest


r = np.random.RandomState(35)
data = (r.randn(ROWS, WIDTH) + 2 * r.randn(5, WIDTH)[r.randint(0, 5, ROWS)]).astype(np.float32)
orders = [np.arange(i, ROWS, ROWS // BATCH) for i in range(ROWS // BATCH)]
network = Network()
optimizer = nn.Adam(network.trainable_params(), 0.02)
gradients = ms.value_and_grad(lambda x, t: ((network(x) - t) ** 2).mean(), None, network.trainable_params())

labels, labelled_epoch = None, None
batches = ck.data.resumable(orders, epochs=4)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([network, optimizer], batches)
    manager.restore(state)
    for chosen in batches:
        chosen = np.asarray(chosen)
        if labelled_epoch != batches.epoch:
            labels = k_means(network.features(ms.Tensor(data)).asnumpy())
            labelled_epoch = batches.epoch
        targets = np.eye(CLUSTERS, dtype=np.float32)[labels[chosen]]
        loss, grads = gradients(ms.Tensor(data[chosen]), ms.Tensor(targets))
        optimizer(grads)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
