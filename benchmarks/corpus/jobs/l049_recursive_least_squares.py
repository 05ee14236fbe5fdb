# truth: differs
# class: attribute
# head: pynative_ops
# A linear head is fitted by recursive least squares beside the network; its coefficients are Parameters, its inverse covariance is a NumPy array.

ms.set_seed(4149)


class LinearHead(nn.Cell):
    def __init__(self, width):
        super().__init__()
        self.coefficients = ms.Parameter(np.zeros((width, 1), np.float32), name="coefficients", requires_grad=False)

    def construct(self, x):
        return ops.matmul(x, self.coefficients)


class RecursiveLeastSquares:
    def __init__(self, head, forgetting=0.99, prior=10.0):
        self.head, self.forgetting = head, forgetting
        self.p = prior * np.eye(head.coefficients.shape[0])

    def fit(self, xs, ys):
        w = self.head.coefficients.asnumpy().astype(np.float64)
        for x, y in zip(xs.astype(np.float64), ys):
            px = self.p @ x
            gain = px / (self.forgetting + x @ px)
            w[:, 0] += gain * (float(y[0]) - x @ w[:, 0])
            self.p = (self.p - np.outer(gain, px)) / self.forgetting
        ops.assign(self.head.coefficients, ms.Tensor(w.astype(np.float32)))


r = np.random.RandomState(49)
rows = []
for _ in range(8):
    x = r.randn(6, 4).astype(np.float32)
    rows.append((x, (x @ [[1.0], [-0.5], [0.2], [0.0]] + np.sin(2 * x[:, :1])).astype(np.float32)))
head = LinearHead(4)
body = nn.SequentialCell(nn.Dense(4, 8), nn.Tanh(), nn.Dense(8, 1))
mse = nn.MSELoss()
opt = nn.Momentum(body.trainable_params(), 0.03, 0.9)
gradients = ms.value_and_grad(lambda x, residual: mse(body(x), residual), None, body.trainable_params())
rls = RecursiveLeastSquares(head)

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([body, head, opt], batches)
    manager.restore(state)
    for x, y in batches:
        manager.fence()
        rls.fit(x, y)
        inputs = ms.Tensor(x)
        loss, grads = gradients(inputs, ms.Tensor(y) - head(inputs))
        opt(grads)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
