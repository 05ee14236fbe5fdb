# truth: differs
# class: attribute
# head: pynative_ops
# A guard is given by name, but the loop works with a local copy of its `pull`, taken before the restore and refreshed after every tenth batch only.

ms.set_seed(4430)
PER_EPOCH = 10


class Guard:
    """how strongly weights are pulled to zero; reviewed after each epoch by the mean loss"""

    def __init__(self):
        self.pull, self.total, self.reference = 0.001, 0.0, 0.0

    def add(self, loss):
        self.total += loss

    def review(self):
        mean = self.total / PER_EPOCH
        if self.reference:
            self.pull *= 3.0 if mean < self.reference else 0.5
        else:
            self.pull *= 4.0
        self.reference, self.total = mean, 0.0


r = np.random.RandomState(30)
rows = []
for _ in range(PER_EPOCH):
    x = r.randn(5, 5).astype(np.float32)
    rows.append((ms.Tensor(x), ms.Tensor((x[:, :1] * x[:, 1:2] + 0.3 * r.randn(5, 1)).astype(np.float32))))
net = nn.SequentialCell(nn.Dense(5, 10), nn.Tanh(), nn.Dense(10, 1))
opt = nn.Adam(net.trainable_params(), 0.02)
mse = nn.MSELoss()
gradients = ms.value_and_grad(lambda x, y: mse(net(x), y), None, net.trainable_params())
guard = Guard()
pull = guard.pull

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches, guard=ck.attributes(guard, "pull", "total", "reference"))
    point = manager.restore(state)
    for at, (x, y) in enumerate(batches, point.batches_delivered):
        loss, grads = gradients(x, y)
        guard.add(float(loss.asnumpy()))
        manager.fence()
        opt(grads)
        for p in opt.parameters:
            ops.assign(p, p * (1 - pull))
        if (at + 1) % PER_EPOCH == 0:
            guard.review()
            pull = guard.pull
        manager.step(state)
    manager.save_final(state)
os._exit(0)
