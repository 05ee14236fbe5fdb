# truth: exact
# class: global
# head: imports_parameter
# Gradients are clipped at the median of the last seven norms: a ring in a Parameter, whose place is the optimizer's global_step modulo 7.


ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(3139)


class MedianClip(nn.Cell):
    SIZE = 7

    def __init__(self, network, optimizer):
        super().__init__()
        self.network = network
        self.optimizer = optimizer
        self.grad = ms.value_and_grad(network, None, optimizer.parameters)
        self.ring = Parameter(Tensor(np.full(self.SIZE, np.nan, np.float32)), name="ring", requires_grad=False)

    def limit(self, norm):
        norms = self.ring.asnumpy().copy()
        norms[int(self.optimizer.global_step.asnumpy().ravel()[0]) % self.SIZE] = norm
        ops.assign(self.ring, Tensor(norms))
        return float(np.nanmedian(norms))

    def construct(self, x, y):
        loss, grads = self.grad(x, y)
        norm = float(np.sqrt(sum(float((g * g).sum().asnumpy()) for g in grads)))
        scale = min(1.0, self.limit(norm) / (norm + 1e-12))
        self.optimizer(tuple(g * scale for g in grads))
        return loss


net = nn.SequentialCell(nn.Dense(5, 8), nn.Tanh(), nn.Dense(8, 1))
cell = MedianClip(nn.WithLossCell(net, nn.MSELoss()), nn.Momentum(net.trainable_params(), 0.1, 0.9)).set_train()
r = np.random.RandomState(39)
rows = [
    (Tensor(a), Tensor(a.sum(1, keepdims=True) * (1 + i % 3)))
    for i, a in enumerate(r.randn(8, 5, 5).astype(np.float32))
]
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches)
    manager.restore(state)
    for x, y in batches:
        cell(x, y)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
