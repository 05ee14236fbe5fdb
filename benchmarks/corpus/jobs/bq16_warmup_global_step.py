# truth: differs
# class: random
# head: root_dataset_tensor_ops

ms.set_seed(4)


class Trainer:
    def __init__(self, net, base_lr=0.1, warmup=10, total=36):
        self.net = net
        self.base_lr, self.warmup, self.total = base_lr, warmup, total
        self.optimizer = nn.SGD(net.trainable_params(), base_lr, momentum=0.9)
        self.criterion = nn.CrossEntropyLoss()
        self.grad_fn = ms.value_and_grad(self.forward, None, self.optimizer.parameters)
        self.global_step = 0

    def forward(self, x, y):
        return self.criterion(self.net(x), y)

    def adjust_lr(self):
        if self.global_step < self.warmup:
            lr = self.base_lr * (self.global_step + 1) / self.warmup
        else:
            t = (self.global_step - self.warmup) / (self.total - self.warmup)
            lr = 0.5 * self.base_lr * (1 + np.cos(np.pi * t))
        ops.assign(self.optimizer.learning_rate, Tensor(lr, ms.float32))

    def step(self, x, y):
        self.adjust_lr()
        loss, grads = self.grad_fn(x, y)
        self.optimizer(grads)
        self.global_step += 1
        return loss


def get_loader():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(96, 8)).astype(np.float32)
    y = (x.sum(1) > 0).astype(np.int32)
    return ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=True).batch(8)


if __name__ == "__main__":
    trainer = Trainer(nn.SequentialCell(nn.Dense(8, 16), nn.ReLU(), nn.Dense(16, 2)))
    batches = ck.data.resumable(get_loader(), epochs=3)
    with ck.CheckpointManager(ROOT, save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")) as manager:
        state = ck.StateManager([trainer.net, trainer.optimizer], batches)
        point = manager.restore(state)
        for x, y in batches:
            loss = trainer.step(x, y)
            manager.step(state, {"loss": loss})
        manager.save_final(state)
