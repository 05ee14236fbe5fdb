# truth: differs
# class: attribute
# head: regression_8_rows
# a singleton hub, reached by name as in MMEngine, keeps the history of the loss; its smoothed value sets the rate

net = nn.SequentialCell(nn.Dense(8, 8), nn.ReLU(), nn.Dense(8, 1))
loss_fn = nn.MSELoss()
optimizer = nn.Adam(net.trainable_params(), 0.01)
grad_fn = ms.value_and_grad(lambda x, y, w: loss_fn(net(x), y) * w, None, optimizer.parameters)


def train_step(x, y, w=1.0):
    loss, grads = grad_fn(x, y, w)
    optimizer(grads)
    return loss


class HubMeta(type):
    _instances = {}

    def get_instance(cls, name):
        if name not in cls._instances:
            cls._instances[name] = cls(name)
        return cls._instances[name]


class MessageHub(metaclass=HubMeta):
    def __init__(self, name):
        self.name, self._scalars = name, {}

    def update_scalar(self, key, value):
        self._scalars.setdefault(key, []).append(float(value))

    def get_scalar(self, key, window):
        return float(np.mean(self._scalars[key][-window:])) if key in self._scalars else None


class LrUpdater:
    def after_train_iter(self, loss):
        MessageHub.get_instance("train").update_scalar("loss", loss.asnumpy())

    def before_train_iter(self):
        hub = MessageHub.get_instance("train")
        recent, overall = hub.get_scalar("loss", 4), hub.get_scalar("loss", 100)
        if recent is not None:
            ops.assign(optimizer.learning_rate, Tensor(0.01 * recent / overall, ms.float32))


runner = LrUpdater()
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches)
    manager.restore(state)
    for x, y in batches:
        runner.before_train_iter()
        runner.after_train_iter(train_step(x, y))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
