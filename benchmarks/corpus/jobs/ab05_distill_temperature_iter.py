# truth: differs
# class: iterator
# head: classes_6_rows


teacher = nn.SequentialCell(nn.Dense(6, 16), nn.Tanh(), nn.Dense(16, 4))
student = nn.SequentialCell(nn.Dense(6, 8), nn.Tanh(), nn.Dense(8, 4))
teacher.update_parameters_name("teacher.")
opt = nn.Adam(student.trainable_params(), 0.01)


class Distiller:
    def __init__(self, teacher, student, temperatures):
        self.teacher, self.student = teacher, student
        self.temperatures = iter(temperatures)
        self.grad = ms.value_and_grad(self.loss, None, opt.parameters)

    def loss(self, x, y, soft, t):
        logits = self.student(x)
        kd = -(soft * ops.log_softmax(logits / t, -1)).sum(-1).mean() * t * t
        return 0.5 * kd + 0.5 * ops.cross_entropy(logits, y)

    def __call__(self, x, y):
        t = float(next(self.temperatures))
        soft = ops.softmax(self.teacher(x) / t, -1)
        loss, grads = self.grad(x, y, soft, t)
        opt(grads)
        return loss


distill = Distiller(teacher, student, np.linspace(6, 1, 40))
batches = ck.data.resumable(loader, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([student, teacher, opt], batches)
    manager.restore(state)
    for x, y in batches:
        distill(x, y)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
