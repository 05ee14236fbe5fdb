# truth: differs
# class: attribute
# head: imports_ops
# Two-tower retrieval with in-batch negatives; item frequencies for the logQ correction are estimated from the stream (Yi et al. 2019).


ms.set_seed(9)
USERS, ITEMS, DIM, BS = 20, 16, 6, 6


class FrequencyEstimator:
    """A[i]: last step at which item i was sampled, B[i]: average gap between two samples."""

    def __init__(self, n, alpha=0.3):
        self.A = np.zeros(n)
        self.B = np.full(n, 4.0)
        self.alpha = alpha

    def log_prob(self, items, step):
        for i in np.unique(items):
            self.B[i] = (1 - self.alpha) * self.B[i] + self.alpha * (step - self.A[i])
            self.A[i] = step
        return (-np.log(np.maximum(self.B[items], 1.0))).astype(np.float32)


class TwoTower(nn.Cell):
    def __init__(self):
        super().__init__()
        self.user = nn.Embedding(USERS, DIM)
        self.item = nn.Embedding(ITEMS, DIM)
        self.proj = nn.Dense(DIM, DIM)

    def construct(self, u, i, logq):
        scores = ops.matmul(self.proj(self.user(u)), self.item(i).T)
        labels = ops.arange(u.shape[0]).astype(ms.int32)
        return ops.cross_entropy(scores - logq.reshape((1, -1)), labels)


rng = np.random.default_rng(3)
popularity = 1.0 / np.arange(1, ITEMS + 1)
popularity /= popularity.sum()
log = [
    (rng.integers(0, USERS, BS).astype(np.int32), rng.choice(ITEMS, BS, p=popularity).astype(np.int32))
    for _ in range(9)
]

tower = TwoTower()
cell = nn.TrainOneStepCell(tower, nn.Adam(tower.trainable_params(), learning_rate=0.02)).set_train()
estimator = FrequencyEstimator(ITEMS)
batches = ck.data.resumable(log, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches)
    point = manager.restore(state)
    for step, (u, i) in enumerate(batches, point.batches_delivered + 1):
        logq = estimator.log_prob(i, step)
        loss = cell(ms.Tensor(u), ms.Tensor(i), ms.Tensor(logq))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
