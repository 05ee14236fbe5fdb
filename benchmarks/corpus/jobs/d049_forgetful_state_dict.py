# truth: differs
# class: attribute
# head: regression_8_rows
# the controller is given by name, but its state_dict leaves out the running mean that the factor is computed from

net = nn.SequentialCell(nn.Dense(8, 8), nn.ReLU(), nn.Dense(8, 1))
loss_fn = nn.MSELoss()
optimizer = nn.Momentum(net.trainable_params(), 0.03, 0.9)
grad_fn = ms.value_and_grad(lambda x, y, w: loss_fn(net(x), y) * w, None, optimizer.parameters)


def train_step(x, y, w=1.0):
    loss, grads = grad_fn(x, y, w)
    optimizer(grads)
    return loss


class Stateful:
    """Base class: what is in `fields` is stored."""

    fields = ()

    def state_dict(self):
        return {name: getattr(self, name) for name in self.fields}

    def load_state_dict(self, state):
        for name in self.fields:
            setattr(self, name, state[name])


class RateController(Stateful):
    fields = ("steps", "factor")

    def __init__(self, base):
        self.base, self.steps, self.factor = base, 0, 1.0
        self._mean = None

    def observe(self, loss):
        self.steps += 1
        self._mean = loss if self._mean is None else 0.85 * self._mean + 0.15 * loss
        self.factor = 0.5 * self.factor + 0.5 * min(2.0, loss / self._mean)

    @property
    def rate(self):
        return self.base * self.factor / (1 + 0.02 * self.steps)


controller = RateController(0.03)
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches, controller=controller)
    manager.restore(state)
    for x, y in batches:
        ops.assign(optimizer.learning_rate, Tensor(controller.rate, ms.float32))
        controller.observe(float(train_step(x, y).asnumpy()))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
