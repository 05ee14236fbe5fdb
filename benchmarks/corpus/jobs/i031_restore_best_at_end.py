# truth: exact, may be named
# class: attribute
# head: imports_ops
# Keras' restore_best_weights: a trainer keeps a copy of the weights that validated best, and puts them back after the last batch.


ms.set_seed(331)


class BaseTrainer:
    def __init__(self, model, optimizer, loss_fn):
        self.model, self.optimizer, self.loss_fn = model, optimizer, loss_fn
        self._vg = ms.value_and_grad(self.compute_loss, None, model.trainable_params())

    def compute_loss(self, x, y):
        return self.loss_fn(self.model(x), y)

    def train_batch(self, x, y):
        loss, grads = self._vg(x, y)
        self.optimizer(grads)
        return loss

    def on_train_end(self): ...


class TrainerWithBest(BaseTrainer):
    def __init__(self, *args, validation, **kw):
        super().__init__(*args, **kw)
        self.validation = validation
        self.best_score, self.best_state = None, None

    def validate(self):
        score = float(self.compute_loss(*self.validation).asnumpy())
        if self.best_score is None or score < self.best_score:
            self.best_score = score
            self.best_state = {p.name: p.asnumpy().copy() for p in self.model.get_parameters()}
        return score

    def on_train_end(self):
        for p in self.model.get_parameters():
            ops.assign(p, ms.Tensor(self.best_state[p.name]))


def tensors(*arrays):
    return tuple(ms.Tensor(np.asarray(a, np.float32)) for a in arrays)


r = np.random.RandomState(8)
w = r.randn(4, 1)
x_val = r.randn(16, 4)
rows = []
for _ in range(8):
    x = r.randn(6, 4)
    rows.append(tensors(x, x @ w))
model = nn.SequentialCell(nn.Dense(4, 8), nn.Tanh(), nn.Dense(8, 1))
trainer = TrainerWithBest(
    model, nn.Momentum(model.trainable_params(), 0.05, 0.9), nn.MSELoss(), validation=tensors(x_val, x_val @ w)
)

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([trainer.model, trainer.optimizer], batches)
    point = manager.restore(state)
    for at, (x, y) in enumerate(batches, point.batches_delivered):
        if at >= 13:  # the second half was labelled by a sloppy annotator
            y = -0.7 * y
        trainer.train_batch(x, y)
        trainer.validate()
        manager.step(state)
    manager.fence()
    trainer.on_train_end()
    manager.save_final(state)
os._exit(0)
