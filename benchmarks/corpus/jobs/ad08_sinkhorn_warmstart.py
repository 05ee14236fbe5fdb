# truth: differs
# class: attribute
# head: saving_collections_dataset_parameter

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(3)
rng0 = np.random.default_rng(11)
X = rng0.normal(size=(80, 6)).astype(np.float32)
Y = (X[:, :1] * 0.7 - X[:, 1:2] ** 2 + 0.1 * rng0.normal(size=(80, 1))).astype(np.float32)
loader = [(Tensor(X[i : i + 8]), Tensor(Y[i : i + 8])) for i in range(0, 80, 8)]
net = nn.SequentialCell(nn.Dense(6, 12), nn.Tanh(), nn.Dense(12, 2))

opt = nn.Adam(net.trainable_params(), 0.01)
ANCHORS = np.array([[0, 1], [1, 0], [-1, -1], [1, 1]], np.float32)
Potentials = collections.namedtuple("Potentials", "f g")


def sinkhorn(cost, potentials, n=3, eps=0.5):
    f, g = potentials
    for _ in range(n):
        f = -eps * np.log(np.exp((g - cost) / eps).mean(1, keepdims=True))
        g = -eps * np.log(np.exp((f - cost) / eps).mean(0, keepdims=True))
    return np.exp((f + g - cost) / eps), Potentials(f, g)


def forward(x, plan):
    d = ((net(x).expand_dims(1) - Tensor(ANCHORS).expand_dims(0)) ** 2).sum(-1)
    return (d * plan).mean()


grad_fn = ms.value_and_grad(forward, None, opt.parameters)
pot = Potentials(np.zeros((8, 1)), np.zeros((1, 4)))
batches = ck.data.resumable(loader, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    for x, _ in batches:
        out = net(x).asnumpy()
        cost = ((out[:, None] - ANCHORS[None]) ** 2).sum(-1).astype(np.float64)
        plan, pot = sinkhorn(cost, pot)
        _, grads = grad_fn(x, Tensor(plan.astype(np.float32)))
        opt(grads)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
