# truth: differs
# class: iterator
# head: imports
# detectron2 style: losses ask get_event_storage() for the iteration to ramp a penalty; the storage is always opened with start_iter=0.


ms.set_seed(307)
_CURRENT_STORAGE_STACK = []


def get_event_storage():
    assert _CURRENT_STORAGE_STACK, "get_event_storage() has to be called inside a 'with EventStorage(...)' context!"
    return _CURRENT_STORAGE_STACK[-1]


class EventStorage:
    def __init__(self, start_iter=0):
        self._iter = start_iter
        self._latest = {}

    @property
    def iter(self):
        return self._iter

    def put_scalar(self, name, value):
        self._latest[name] = (float(value), self._iter)

    def step(self):
        self._iter += 1

    def __enter__(self):
        _CURRENT_STORAGE_STACK.append(self)
        return self

    def __exit__(self, *exc):
        assert _CURRENT_STORAGE_STACK.pop() is self


class Head:
    def __init__(self, dim, ramp):
        self.net = nn.SequentialCell(nn.Dense(dim, 8), nn.Tanh(), nn.Dense(8, 1))
        self.ramp = ramp
        self.mse = nn.MSELoss()

    def losses(self, x, y):
        out = self.net(x)
        weight = min(1.0, get_event_storage().iter / self.ramp)
        return {"fit": self.mse(out, y), "shrink": weight * (out * out).mean()}


head = Head(4, 20)
opt = nn.Momentum(head.net.trainable_params(), 0.05, 0.9)
vg = ms.value_and_grad(lambda x, y: sum(head.losses(x, y).values()), None, head.net.trainable_params())

r = np.random.RandomState(4)
rows = []
for _ in range(8):
    x = r.randn(6, 4).astype(np.float32)
    rows.append((ms.Tensor(x), ms.Tensor((2 * x[:, :1] + 1).astype(np.float32))))
batches = ck.data.resumable(rows, epochs=3)
with (
    ck.CheckpointManager(
        os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
    ) as manager,
    EventStorage(start_iter=0) as storage,
):
    state = ck.StateManager([head.net, opt], batches)
    manager.restore(state)
    for x, y in batches:
        loss, grads = vg(x, y)
        opt(grads)
        storage.put_scalar("total_loss", loss.asnumpy())
        storage.step()
        manager.step(state)
    manager.save_final(state)
os._exit(0)
