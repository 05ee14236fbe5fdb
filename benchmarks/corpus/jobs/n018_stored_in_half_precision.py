# truth: differs
# class: attribute
# head: pynative
# A table of running errors per row is float64 in training; to save space its state_dict stores float16, which load_state_dict turns back into float64.

ms.set_seed(4418)


class ErrorTable:
    """a running mean of the squared error of every row; rows that are hard for long get a larger weight"""

    def __init__(self, rows, decay):
        self.decay = decay
        self.errors = np.ones(rows)

    def weights(self, numbers):
        chosen = np.sqrt(self.errors[numbers])
        return (chosen / chosen.mean()).astype(np.float32)

    def update(self, numbers, errors):
        self.errors[numbers] = self.decay * self.errors[numbers] + (1 - self.decay) * errors

    def state_dict(self):
        return {"errors": self.errors.astype(np.float16)}

    def load_state_dict(self, state):
        self.errors = np.asarray(state["errors"]).astype(np.float64)


class Weighted(nn.Cell):
    def __init__(self, body):
        super().__init__()
        self.body = body

    def construct(self, x, y, w):
        return (((self.body(x) - y) ** 2).sum(1) * w).mean()


r = np.random.RandomState(18)
x = r.randn(48, 5).astype(np.float32)
y = (x[:, :1] * x[:, 1:2] + 0.6 * r.standard_t(3, (48, 1))).astype(np.float32)
rows = [np.arange(i * 6, (i + 1) * 6) for i in range(8)]
net = nn.SequentialCell(nn.Dense(5, 10), nn.Tanh(), nn.Dense(10, 1))
cell = Weighted(net)
opt = nn.Momentum(cell.trainable_params(), 0.05, 0.9)
gradients = ms.value_and_grad(cell, None, opt.parameters)
table = ErrorTable(48, decay=0.7)

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([cell, opt], batches, table=table)
    manager.restore(state)
    for numbers in batches:
        numbers = np.asarray(numbers)
        inputs, targets = ms.Tensor(x[numbers]), ms.Tensor(y[numbers])
        errors = ((net(inputs).asnumpy() - y[numbers]) ** 2).sum(1)
        loss, grads = gradients(inputs, targets, ms.Tensor(table.weights(numbers)))
        table.update(numbers, errors.astype(np.float64))
        opt(grads)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
