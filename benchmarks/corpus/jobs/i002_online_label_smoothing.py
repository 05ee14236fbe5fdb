# truth: differs
# class: attribute
# head: imports_ops
# Online label smoothing (Zhang et al.): the soft label table of this epoch and the one being collected for the next are NumPy arrays of the loss object.


ms.set_seed(302)
C = 4


class OnlineLabelSmoothing:
    def __init__(self, classes):
        self.classes = classes
        self.soft = np.full((classes, classes), 1.0 / classes, np.float32)
        self._next = np.zeros((classes, classes), np.float32)
        self._count = np.zeros(classes, np.float32)

    def targets(self, labels):
        return 0.5 * np.eye(self.classes, dtype=np.float32)[labels] + 0.5 * self.soft[labels]

    def collect(self, probs, labels):
        for p, t in zip(probs, labels):
            if p.argmax() == t or self._count[t] == 0:
                self._next[t] += p
                self._count[t] += 1

    def next_epoch(self):
        seen = self._count > 0
        self.soft[seen] = self._next[seen] / self._count[seen, None]
        self._next[:] = 0
        self._count[:] = 0


net = nn.SequentialCell(nn.Dense(6, 10), nn.ReLU(), nn.Dense(10, C))
opt = nn.Momentum(net.trainable_params(), 0.1, 0.9)


def forward(x, target):
    probs = ops.softmax(net(x), -1)
    return ((probs - target) ** 2).sum(-1).mean(), probs


vg = ms.value_and_grad(forward, None, net.trainable_params(), has_aux=True)
r = np.random.RandomState(3)
centers = r.randn(C, 6)
data = []
for _ in range(8):
    t = r.randint(0, C, 8)
    data.append(((centers[t] + 0.5 * r.randn(8, 6)).astype(np.float32), t.astype(np.int32)))

criterion = OnlineLabelSmoothing(C)
batches = ck.data.resumable(data, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches)
    point = manager.restore(state)
    for at, (x, t) in enumerate(batches, point.batches_delivered):
        if at and at % len(data) == 0:
            criterion.next_epoch()
        (loss, probs), grads = vg(ms.Tensor(x), ms.Tensor(criterion.targets(t)))
        opt(grads)
        criterion.collect(probs.asnumpy(), t)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
