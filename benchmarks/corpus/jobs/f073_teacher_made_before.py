# truth: exact
# class: attribute
# head: imports_ops
# Distillation from a teacher that every start trains anew, deterministically, before the student's run is restored.


ms.set_seed(62)

r = np.random.RandomState(62)
X = r.randn(48, 6).astype(np.float32)
Y = (np.sign(X[:, :1] * X[:, 1:2]) * 1.0).astype(np.float32)


def mlp(width, prefix):
    net = nn.SequentialCell(nn.Dense(6, width), nn.Tanh(), nn.Dense(width, 1))
    net.update_parameters_name(prefix)
    return net


def train_teacher(steps=15):
    teacher = mlp(16, "teacher.")
    opt = nn.Momentum(teacher.trainable_params(), 0.2, 0.9)
    vg = ms.value_and_grad(lambda x, y: ops.square(teacher(x) - y).mean(), None, opt.parameters)
    x, y = ms.Tensor(X), ms.Tensor(Y)
    for _ in range(steps):
        _, grads = vg(x, y)
        opt(grads)
    teacher.set_train(False)
    for p in teacher.get_parameters():
        p.requires_grad = False
    return teacher


class Distill(nn.Cell):
    def __init__(self, student):
        super().__init__()
        self.student = student

    def construct(self, x, y, soft):
        out = self.student(x)
        return 0.3 * ((out - y) ** 2).mean() + 0.7 * ((out - soft) ** 2).mean()


teacher = train_teacher()
soft_targets = teacher(ms.Tensor(X)).asnumpy()
student = mlp(5, "student.")
loss = Distill(student)
cell = ck.AccumulationTrainCell(loss, nn.Adam(student.trainable_params(), 0.02), 2).set_train()
batches = ck.data.resumable([np.arange(i, i + 6) for i in range(0, 48, 6)], epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches)
    manager.restore(state)
    for idx in batches:
        cell(ms.Tensor(X[idx]), ms.Tensor(Y[idx]), ms.Tensor(soft_targets[idx]))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
