# truth: differs
# class: attribute
# head: imports
# A descriptor smooths whatever is assigned to it; so does the trainer's margin, which it sets from its batch's logits.


ms.set_seed(7)


class Smoothed:
    """obj.attr = v stores a running mean of the values v"""

    def __init__(self, momentum, initial):
        self.momentum = momentum
        self.initial = initial

    def __set_name__(self, owner, name):
        self.slot = "_smoothed_" + name

    def __get__(self, obj, owner=None):
        if obj is None:
            return self
        return getattr(obj, self.slot, self.initial)

    def __set__(self, obj, value):
        old = self.__get__(obj)
        setattr(obj, self.slot, self.momentum * old + (1 - self.momentum) * value)


class HingeLoss(nn.Cell):
    def __init__(self, scorer):
        super().__init__()
        self.scorer = scorer
        self.relu = nn.ReLU()

    def construct(self, x, sign, margin):
        return self.relu(margin - sign * self.scorer(x)).mean()


class Trainer:
    margin = Smoothed(momentum=0.85, initial=0.2)

    def __init__(self, cell, scorer):
        self.cell, self.scorer = cell, scorer

    def fit_batch(self, x, sign):
        self.margin = float(np.abs(self.scorer(x).asnumpy()).mean()) + 0.5
        return self.cell(x, sign, ms.Tensor(self.margin, ms.float32))


r = np.random.RandomState(1)
scorer = nn.SequentialCell(nn.Dense(8, 8), nn.Tanh(), nn.Dense(8, 1))
loss = HingeLoss(scorer)
cell = ck.AccumulationTrainCell(loss, nn.Adam(scorer.trainable_params(), 0.01), 1).set_train()
trainer = Trainer(cell, scorer)
rows = [(ms.Tensor(x), ms.Tensor(np.sign(x[:, 3:4]))) for x in r.randn(8, 6, 8).astype(np.float32)]
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches)
    manager.restore(state)
    for x, sign in batches:
        trainer.fit_batch(x, sign)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
