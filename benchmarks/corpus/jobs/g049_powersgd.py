# truth: differs
# class: attribute
# head: imports
# PowerSGD: gradients are compressed to rank one; the warm-started Q of the power iteration is kept per tensor in the compressor.


ms.set_seed(74)


class PowerSGDState:
    __slots__ = ("qs", "start_iter", "iteration")

    def __init__(self, start_iter=2):
        self.qs = {}
        self.start_iter = start_iter
        self.iteration = 0


def power_sgd_hook(state, index, grad):
    """Returns the rank-1 approximation of a matrix gradient, as torch's powerSGD_hook does for a bucket."""
    if grad.ndim < 2:
        return grad
    m = grad.reshape(grad.shape[0], -1)
    q = state.qs.get(index)
    if q is None:
        q = np.random.RandomState(index).randn(m.shape[1], 1)
    q = q / (np.linalg.norm(q) + 1e-12)
    p = m @ q
    p = p / (np.linalg.norm(p) + 1e-12)
    state.qs[index] = m.T @ p
    return (p @ state.qs[index].T).reshape(grad.shape).astype(np.float32)


class LeNetMini(nn.Cell):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, stride=2, pad_mode="pad", padding=1, has_bias=True)
        self.relu = nn.ReLU()
        self.flatten = nn.Flatten()
        self.fc = nn.Dense(4 * 9, 3)

    def construct(self, x):
        return self.fc(self.flatten(self.relu(self.conv(x))))


net = LeNetMini()
criterion = nn.CrossEntropyLoss()
optimizer = nn.Momentum(net.trainable_params(), 0.1, 0.9)
grad_fn = ms.value_and_grad(lambda x, y: criterion(net(x), y), None, net.trainable_params())
compressor = PowerSGDState()

rs = np.random.RandomState(10)
imgs = rs.rand(48, 1, 6, 6).astype(np.float32)
cls = np.digitize(imgs[:, 0, :2].mean((1, 2)), [0.45, 0.55]).astype(np.int32)
train_loader = [(ms.Tensor(imgs[i : i + 6]), ms.Tensor(cls[i : i + 6])) for i in range(0, 48, 6)]
batches = ck.data.resumable(train_loader, epochs=3)

with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, optimizer], batches)
    manager.restore(state)
    for images, target in batches:
        loss, grads = grad_fn(images, target)
        compressed = [power_sgd_hook(compressor, i, g.asnumpy().copy()) for i, g in enumerate(grads)]
        optimizer(tuple(ms.Tensor(c) for c in compressed))
        compressor.iteration += 1
        manager.step(state)
    manager.save_final(state)
os._exit(0)
