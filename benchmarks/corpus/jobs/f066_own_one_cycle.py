# truth: differs
# class: attribute
# head: imports_math_ops
# A scheduler copied from a PyTorch project counts its own steps in last_epoch and sets rate and momentum of the optimizer.


ms.set_seed(82)


class _LRScheduler:
    def __init__(self, optimizer, last_epoch=-1):
        self.optimizer = optimizer
        self.last_epoch = last_epoch
        self.step()

    def step(self):
        self.last_epoch += 1
        ops.assign(self.optimizer.learning_rate, ms.Tensor(self.get_lr(), ms.float32))

    def get_lr(self):
        raise NotImplementedError


class OneCycleLR(_LRScheduler):
    def __init__(self, optimizer, max_lr, total_steps, pct_start=0.3):
        self.max_lr, self.total_steps, self.pct_start = max_lr, total_steps, pct_start
        super().__init__(optimizer)

    def get_lr(self):
        up = self.pct_start * self.total_steps
        if self.last_epoch <= up:
            f = self.last_epoch / up
        else:
            f = 1 - (self.last_epoch - up) / (self.total_steps - up)
        return self.max_lr * (0.04 + 0.96 * (1 - math.cos(math.pi * max(0.0, f))) / 2)


net = nn.SequentialCell(nn.Dense(8, 10), nn.ReLU(), nn.Dense(10, 4))
criterion = nn.CrossEntropyLoss()
optimizer = nn.SGD(net.trainable_params(), learning_rate=0.01, momentum=0.9)
cell = ck.AccumulationTrainCell(nn.WithLossCell(net, criterion), optimizer, 1)
cell.set_train()
scheduler = OneCycleLR(optimizer, max_lr=0.2, total_steps=27)

g = np.random.default_rng(82)
train_loader = []
for _ in range(9):
    x = g.normal(size=(6, 8)).astype(np.float32)
    train_loader.append((ms.Tensor(x), ms.Tensor(x[:, :4].argmax(1).astype(np.int32))))

batches = ck.data.resumable(train_loader, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches)
    manager.restore(state)
    for inputs, labels in batches:
        loss = cell(inputs, labels)
        scheduler.step()
        manager.step(state)
    manager.save_final(state)
os._exit(0)
