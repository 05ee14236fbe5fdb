# truth: differs
# class: attribute
# head: imports_tensor_ops
# the class prototypes and their counts are NumPy arrays, updated in place (np.add.at) and used in the loss


ROOT = os.environ["ROOT"]
SAVE = dict(save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(1)


def blobs(seed, classes=4, dim=8, total=64, size=8):
    rng = np.random.default_rng(seed)
    centers = 2.0 * rng.normal(size=(classes, dim))
    labels = rng.integers(0, classes, total)
    feats = (centers[labels] + rng.normal(size=(total, dim))).astype(np.float32)
    onehot = np.eye(classes, dtype=np.float32)[labels]
    return [(Tensor(feats[k : k + size]), Tensor(onehot[k : k + size])) for k in range(0, total, size)]


rows = blobs(21)


class Prototypes:
    def __init__(self, classes, dim):
        self.sums, self.counts = np.zeros((classes, dim), np.float32), np.zeros((classes, 1), np.float32)

    def update(self, features, labels):
        np.multiply(self.sums, 0.9, out=self.sums)
        np.multiply(self.counts, 0.9, out=self.counts)
        np.add.at(self.sums, labels, features)
        np.add.at(self.counts, labels, 1.0)

    def centers(self):
        return self.sums / np.maximum(self.counts, 1e-3)


encoder = nn.SequentialCell(nn.Dense(8, 12), nn.ReLU(), nn.Dense(12, 3))
classifier = nn.SequentialCell(nn.Dense(3, 4), nn.Softmax())
net = nn.SequentialCell(encoder, classifier)
optimizer = nn.Adam(net.trainable_params(), 0.02)


def forward_fn(x, y, centers):
    z = encoder(x)
    return ((classifier(z) - y) ** 2).mean() + 0.1 * ((z - ops.matmul(y, centers)) ** 2).mean()


grad_fn = ms.value_and_grad(forward_fn, None, optimizer.parameters)
prototypes = Prototypes(4, 3)
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches)
    manager.restore(state)
    for x, y in batches:
        loss, grads = grad_fn(x, y, Tensor(prototypes.centers()))
        optimizer(grads)
        prototypes.update(encoder(x).asnumpy(), y.asnumpy().argmax(1))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
