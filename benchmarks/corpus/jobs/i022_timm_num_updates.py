# truth: differs
# class: data
# head: imports_math_ops
# A timm-like scheduler is stepped per update with num_updates = epoch * len(loader) + batch_idx; batch_idx is counted by the loop and begins at 0 in mid-epoch.


ms.set_seed(322)


class CosineLRScheduler:
    def __init__(self, optimizer, lr, t_initial, lr_min=0.0, warmup_t=0, warmup_lr_init=0.0):
        self.optimizer, self.lr = optimizer, lr
        self.t_initial, self.lr_min = t_initial, lr_min
        self.warmup_t, self.warmup_lr_init = warmup_t, warmup_lr_init

    def _get_lr(self, t):
        if t < self.warmup_t:
            return self.warmup_lr_init + t * (self.lr - self.warmup_lr_init) / self.warmup_t
        return self.lr_min + 0.5 * (self.lr - self.lr_min) * (1 + math.cos(math.pi * t / self.t_initial))

    def step_update(self, num_updates):
        ops.assign(self.optimizer.learning_rate, ms.Tensor(self._get_lr(num_updates), ms.float32))


r = np.random.RandomState(6)
loader = []
for _ in range(8):
    x = r.randn(6, 5).astype(np.float32)
    loader.append((ms.Tensor(x), ms.Tensor(np.maximum(x[:, :1], x[:, 1:2]).astype(np.float32))))

net = nn.SequentialCell(nn.Dense(5, 8), nn.ReLU(), nn.Dense(8, 1))
opt = nn.Momentum(net.trainable_params(), 0.05, 0.9)
scheduler = CosineLRScheduler(opt, 0.05, 24, 1e-4, warmup_t=5, warmup_lr_init=1e-3)
mse = nn.MSELoss()
vg = ms.value_and_grad(lambda x, y: mse(net(x), y), None, net.trainable_params())

batches = ck.data.resumable(loader, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches)
    point = manager.restore(state)
    epoch, batch_idx = point.epoch, 0
    for x, y in batches:
        if batches.epoch != epoch:
            epoch, batch_idx = batches.epoch, 0
        manager.fence()
        scheduler.step_update(epoch * len(loader) + batch_idx)
        loss, grads = vg(x, y)
        opt(grads)
        batch_idx += 1
        manager.step(state)
    manager.save_final(state)
os._exit(0)
