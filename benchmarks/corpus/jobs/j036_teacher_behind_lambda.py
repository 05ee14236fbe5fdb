# truth: differs
# class: attribute
# head: imports_tensor_ops
# The teacher must not be a sub-cell ("it would be in the optimizer"), so the step holds a function that returns it; its average moves on.


ms.set_context(mode=ms.PYNATIVE_MODE)


def build(seed):
    ms.set_seed(seed)
    return nn.SequentialCell(nn.Dense(6, 8), nn.Tanh(), nn.Dense(8, 2))


def hidden(cell):
    cell.set_train(False)
    return lambda: cell


class DistillStep(nn.Cell):
    def __init__(self, student, optimizer, teacher, keep=0.85):
        super().__init__()
        self.student, self.optimizer = student, optimizer
        self.teacher = hidden(teacher)
        self.keep = keep
        self.grad = ms.value_and_grad(self.loss, None, optimizer.parameters)

    def loss(self, x, y):
        out = self.student(x)
        return ((out - y) ** 2).mean() + ((out - ops.stop_gradient(self.teacher()(x))) ** 2).mean()

    def construct(self, x, y):
        loss, grads = self.grad(x, y)
        self.optimizer(grads)
        for t, s in zip(self.teacher().get_parameters(), self.student.get_parameters()):
            ops.assign(t, t * self.keep + s * (1 - self.keep))
        return loss


student, teacher = build(36), build(36)
step = DistillStep(student, nn.Momentum(student.trainable_params(), 0.05, 0.9), teacher).set_train()
r = np.random.RandomState(36)
rows = [(Tensor(a), Tensor((a[:, :2] * a[:, 2:4]))) for a in r.randn(8, 5, 6).astype(np.float32)]
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(step, batches)
    manager.restore(state)
    for x, y in batches:
        step(x, y)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
