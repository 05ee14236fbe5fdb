# truth: differs
# class: attribute
# head: imports_ops
# Class-incremental learning (iCaRL): at the end of each task, herding selects exemplars of its class that are rehearsed later; they are kept in a dict by class.


ms.set_seed(356)
CLASSES, PER_TASK = 4, 6


class Classifier(nn.Cell):
    def __init__(self):
        super().__init__()
        self.features = nn.SequentialCell(nn.Dense(5, 8), nn.Tanh())
        self.head = nn.Dense(8, CLASSES)

    def construct(self, x):
        return self.head(self.features(x))


class Learner:
    def __init__(self, exemplars_per_class):
        self.model = Classifier()
        self.opt = nn.Momentum(self.model.trainable_params(), 0.1, 0.9)
        self.vg = ms.value_and_grad(self.loss, None, self.model.trainable_params())
        self.m = exemplars_per_class
        self.memory = {}

    def loss(self, x, target):
        return ((ops.softmax(self.model(x), -1) - target) ** 2).sum(-1).mean()

    def train(self, x, label):
        xs, labels = [x], [np.full(len(x), label)]
        for c, kept in self.memory.items():
            xs.append(kept)
            labels.append(np.full(len(kept), c))
        target = np.eye(CLASSES, dtype=np.float32)[np.concatenate(labels)]
        loss, grads = self.vg(ms.Tensor(np.concatenate(xs)), ms.Tensor(target))
        self.opt(grads)
        return loss

    def herd(self, x, label):
        """greedy: the mean of the chosen ones stays near the class mean"""
        f = self.model.features(ms.Tensor(x)).asnumpy()
        chosen, total = [], np.zeros(f.shape[1])
        for k in range(self.m):
            gap = np.linalg.norm(f.mean(0) - (total + f) / (k + 1), axis=1)
            gap[chosen] = np.inf
            chosen.append(int(gap.argmin()))
            total += f[chosen[-1]]
        self.memory[label] = x[chosen].copy()


r = np.random.RandomState(56)
centers = 1.5 * r.randn(CLASSES, 5)
rows = [((centers[k // 2] + r.randn(8, 5)).astype(np.float32), np.array(k // 2, np.int32)) for k in range(2 * CLASSES)]
learner = Learner(3)
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([learner.model, learner.opt], batches)
    point = manager.restore(state)
    for at, (x, label) in enumerate(batches, point.batches_delivered):
        learner.train(x, int(label))
        if at % 2 == 1:  # the task of this class has ended
            learner.herd(x, int(label))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
