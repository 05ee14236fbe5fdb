# truth: refused
# class: attribute
# head: saving_dataset_parameter

ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(3)
rng0 = np.random.default_rng(11)
X = rng0.normal(size=(80, 6)).astype(np.float32)
Y = (X[:, :1] * 0.7 - X[:, 1:2] ** 2 + 0.1 * rng0.normal(size=(80, 1))).astype(np.float32)
loader = [(Tensor(X[i : i + 8]), Tensor(Y[i : i + 8])) for i in range(0, 80, 8)]
net = nn.SequentialCell(nn.Dense(6, 12), nn.Tanh(), nn.Dense(12, 1))
loss_fn = nn.MSELoss()
opt = nn.Momentum(net.trainable_params(), 0.03, 0.9)


def forward(x, y):
    return loss_fn(net(x), y)


grad_fn = ms.jit(ms.value_and_grad(forward, None, opt.parameters))


class Growable:
    def __init__(self, x, y, size):
        self.x, self.y, self.size = x, y, size

    def __len__(self):
        return 10

    def __iter__(self):
        for i in range(10):
            at = (np.arange(self.size) + 8 * i) % len(self.x)
            yield self.x[at], self.y[at]


source = Growable(X, Y, 4)
batches = ck.data.resumable(source, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, opt], batches)
    point = manager.restore(state)
    for step, (x, y) in enumerate(batches, point.batches_delivered):
        loss, grads = grad_fn(Tensor(x), Tensor(y))
        opt(grads)
        if step % 4 == 3:
            source.size = min(source.size + 1, 16)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
