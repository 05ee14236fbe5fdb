# truth: differs
# class: attribute
# head: regression_8_make_batches
# the mean teacher is a second network, updated by an average, that is not given to the StateManager



class MLP(nn.Cell):
    def __init__(self, dim=8, hidden=12, out=1):
        super().__init__()
        self.fc1 = nn.Dense(dim, hidden)
        self.fc2 = nn.Dense(hidden, out)

    def construct(self, x):
        return self.fc2(ops.tanh(self.fc1(x)))


class MeanTeacher:
    def __init__(self, student, teacher, decay=0.9):
        self.student, self.teacher, self.decay = student, teacher, decay
        for s, t in zip(student.get_parameters(), teacher.get_parameters()):
            ops.assign(t, s.value().copy())
            t.requires_grad = False

    def update(self):
        for s, t in zip(self.student.get_parameters(), self.teacher.get_parameters()):
            ops.assign(t, self.decay * t + (1 - self.decay) * s)

    def targets(self, x):
        return ops.stop_gradient(self.teacher(x))


student = MLP()
ssl = MeanTeacher(student, MLP())
optimizer = nn.Adam(student.trainable_params(), 0.02)


def forward_fn(x, y, targets):
    out = student(x)
    return ((out - y) ** 2).mean() + 0.5 * ((out - targets) ** 2).mean()


grad_fn = ms.value_and_grad(forward_fn, None, optimizer.parameters)
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([student, optimizer], batches)
    manager.restore(state)
    for x, y in batches:
        loss, grads = grad_fn(x, y, ssl.targets(x))
        optimizer(grads)
        ssl.update()
        manager.step(state)
    manager.save_final(state)
os._exit(0)
