# truth: exact
# class: iterator
# head: imports_math_ops
# An mmcv-like runner with registered hooks and priorities; the learning rate follows runner.iter, which begins at what restore() returns.


ms.set_seed(306)
HOOKS = {}


def register(cls):
    HOOKS[cls.__name__] = cls
    return cls


class Hook:
    priority = 50

    def before_run(self, runner): ...
    def before_train_iter(self, runner): ...
    def after_train_iter(self, runner): ...


@register
class CosineAnnealingLrUpdaterHook(Hook):
    priority = 10

    def __init__(self, base_lr, min_lr, warmup_iters):
        self.base_lr, self.min_lr, self.warmup_iters = base_lr, min_lr, warmup_iters

    def get_lr(self, it, max_it):
        if it < self.warmup_iters:
            return self.base_lr * (it + 1) / self.warmup_iters
        return self.min_lr + 0.5 * (self.base_lr - self.min_lr) * (1 + math.cos(math.pi * it / max_it))

    def before_train_iter(self, runner):
        lr = self.get_lr(runner.iter, runner.max_iters)
        ops.assign(runner.optimizer.learning_rate, ms.Tensor(lr, ms.float32))


@register
class TextLoggerHook(Hook):
    priority = 90

    def __init__(self, interval=4):
        self.interval, self.buffer = interval, []

    def after_train_iter(self, runner):
        self.buffer.append(float(runner.outputs["loss"].asnumpy()))
        if (runner.iter + 1) % self.interval == 0:
            print(f"Iter [{runner.iter + 1}/{runner.max_iters}] loss: {np.mean(self.buffer):.4f}")
            self.buffer.clear()


class IterBasedRunner:
    def __init__(self, model, optimizer, loss_fn, max_iters):
        self.model, self.optimizer, self.max_iters = model, optimizer, max_iters
        self.iter, self._hooks, self.outputs = 0, [], {}
        self._vg = ms.value_and_grad(lambda x, y: loss_fn(model(x), y), None, model.trainable_params())

    def register_hook(self, cfg):
        cfg = dict(cfg)
        self._hooks.append(HOOKS[cfg.pop("type")](**cfg))
        self._hooks.sort(key=lambda h: h.priority)

    def call_hook(self, name):
        for hook in self._hooks:
            getattr(hook, name)(self)

    def train_iter(self, batch):
        self.call_hook("before_train_iter")
        loss, grads = self._vg(*batch)
        self.optimizer(grads)
        self.outputs = {"loss": loss}
        self.call_hook("after_train_iter")
        self.iter += 1


r = np.random.RandomState(2)
rows = []
for _ in range(8):
    x = r.randn(6, 4).astype(np.float32)
    rows.append((ms.Tensor(x), ms.Tensor(np.abs(x[:, :1]).astype(np.float32))))
model = nn.SequentialCell(nn.Dense(4, 8), nn.ReLU(), nn.Dense(8, 1))
runner = IterBasedRunner(model, nn.Momentum(model.trainable_params(), 0.05, 0.9), nn.MSELoss(), 24)
runner.register_hook({"type": "TextLoggerHook", "interval": 6})
runner.register_hook({"type": "CosineAnnealingLrUpdaterHook", "base_lr": 0.08, "min_lr": 0.001, "warmup_iters": 4})

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([runner.model, runner.optimizer], batches)
    runner.iter = manager.restore(state).batches_delivered
    runner.call_hook("before_run")
    for batch in batches:
        manager.fence()
        runner.train_iter(batch)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
