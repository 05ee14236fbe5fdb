# truth: differs
# class: attribute
# head: saving_dataset_parameter

ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(3)
rng0 = np.random.default_rng(21)
X = rng0.normal(size=(80, 6)).astype(np.float32)
Y = (np.abs(X).argmax(1) % 4).astype(np.int32)
loader = [(Tensor(X[i : i + 8]), Tensor(Y[i : i + 8])) for i in range(0, 80, 8)]


class Embed(nn.Cell):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Dense(6, 5), nn.Dense(5, 4)

    def construct(self, x):
        f = ops.tanh(self.body(x))
        return f, self.head(f)


net = Embed()
opt = nn.Adam(net.trainable_params(), 0.01)


def forward(x, y, target):
    f, logits = net(x)
    return ops.cross_entropy(logits, y) + 0.1 * ((f - target) ** 2).sum(-1).mean(), f


grad_fn = ms.value_and_grad(forward, None, opt.parameters, has_aux=True)


@ms.jit
def train_step(x, y, target):
    (loss, f), grads = grad_fn(x, y, target)
    opt(grads)
    return loss, f


class Centers:
    def __init__(self, n, d, rate=0.5):
        self.table, self.rate = np.zeros((n, d), np.float32), rate

    def __getitem__(self, labels):
        return Tensor(self.table[labels])

    def pull(self, labels, features):
        for c in np.unique(labels):
            self.table[c] += self.rate * (features[labels == c].mean(0) - self.table[c])


centers = Centers(4, 5)
batches = ck.data.resumable(loader, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    for x, y in batches:
        labels = y.asnumpy()
        loss, f = train_step(x, y, centers[labels])
        centers.pull(labels, f.asnumpy())
        manager.step(state)
    manager.save_final(state)
os._exit(0)
