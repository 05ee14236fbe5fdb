# truth: differs
# class: variable
# head: imports_parameter
# the learned log-variances of the tasks are parameters outside of the cells that are stored


ROOT = os.environ["ROOT"]
SAVE = dict(save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(1)


def make_batches(seed, n=8, size=8, dim=8):
    rng = np.random.default_rng(seed)
    for x in rng.normal(size=(n, size, dim)):
        y = np.tanh(x[:, :3].sum(1, keepdims=True)) + 0.1 * rng.normal(size=(size, 1))
        yield Tensor(x, ms.float32), Tensor(y, ms.float32)


rows = list(make_batches(11))


class TwoHeads(nn.Cell):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Dense(8, 10)
        self.value, self.sign = nn.Dense(10, 1), nn.Dense(10, 1)

    def construct(self, x):
        h = ops.relu(self.trunk(x))
        return self.value(h), self.sign(h)


net = TwoHeads()
optimizer = nn.Momentum(net.trainable_params(), 0.02, 0.9)
log_vars = [Parameter(Tensor([0.0], ms.float32), name=f"log_var_{t}") for t in ("value", "sign")]
weights = list(net.trainable_params()) + log_vars


def multi_task_loss(x, y):
    value, sign = net(x)
    losses = (((value - y) ** 2).mean(), ops.relu(1 - sign * ops.sign(y)).mean())
    return sum(ops.exp(-s) * l + s for s, l in zip(log_vars, losses)).sum()


grad_fn = ms.value_and_grad(multi_task_loss, None, weights)


def train_step(x, y, aux_lr=0.1):
    loss, grads = grad_fn(x, y)
    n = len(weights) - len(log_vars)
    optimizer(grads[:n])
    for s, gs in zip(log_vars, grads[n:]):
        ops.assign(s, s - aux_lr * gs)
    return loss


batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches)
    manager.restore(state)
    for x, y in batches:
        train_step(x, y)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
