# truth: differs
# class: attribute
# head: pynative
# A-GEM: tasks come one after the other, and gradients must not hurt a reservoir of earlier samples.

ms.set_seed(144)
np.random.seed(144)


class Reservoir:
    def __init__(self, size):
        self.size, self.seen = size, 0
        self.x, self.y = [], []

    def add(self, x, y):
        for a, b in zip(x, y):
            self.seen += 1
            if len(self.x) < self.size:
                self.x.append(a)
                self.y.append(b)
                continue
            at = np.random.randint(self.seen)
            if at < self.size:
                self.x[at], self.y[at] = a, b

    def sample(self, n):
        at = np.random.choice(len(self.x), n)
        return ms.Tensor(np.stack([self.x[i] for i in at])), ms.Tensor(np.array([self.y[i] for i in at], np.int32))


r = np.random.RandomState(46)
stream = []
for task in range(5):
    turn = r.randn(8, 8)
    for _ in range(8):
        labels = r.randint(0, 3, 8).astype(np.int32)
        x = (r.randn(8, 8) * 0.5 + (np.eye(3, 8) * 2)[labels]) @ (np.eye(8) + 0.2 * task * turn)
        stream.append((x.astype(np.float32), labels))

net = nn.SequentialCell(nn.Dense(8, 20), nn.ReLU(), nn.Dense(20, 3))
optimizer = nn.SGD(net.trainable_params(), 0.05)
ce = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
grad_fn = ms.value_and_grad(lambda x, y: ce(net(x), y), None, net.trainable_params())
memory = Reservoir(30)

batches = ck.data.resumable(stream, epochs=1)
save, saving = ck.SaveEvery(micro_steps=5), ck.Saving(when_busy="wait")
with ck.CheckpointManager(os.environ["ROOT"], save=save, saving=saving) as manager:
    state = ck.StateManager([net, optimizer], batches)
    manager.restore(state)
    for x, y in batches:
        loss, grads = grad_fn(ms.Tensor(x), ms.Tensor(y))
        if memory.seen:
            _, reference = grad_fn(*memory.sample(8))
            dot = sum(float((g * m).sum().asnumpy()) for g, m in zip(grads, reference))
            if dot < 0:
                square = sum(float((m * m).sum().asnumpy()) for m in reference)
                grads = tuple(g - dot / square * m for g, m in zip(grads, reference))
            grads = tuple(0.8 * g + 0.2 * m for g, m in zip(grads, reference))
        optimizer(grads)
        memory.add(np.asarray(x), np.asarray(y))
        manager.step(state, {"loss": loss})
    manager.save_final(state)
os._exit(0)
