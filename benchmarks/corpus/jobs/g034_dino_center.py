# truth: differs
# class: attribute
# head: imports_tensor_ops
# DINO: student and teacher are both stored, but the centre of the teacher's outputs is a plain tensor in the loss object.


ms.set_seed(27)
np.random.seed(27)
OUT = 6


class DINOHead(nn.Cell):
    def __init__(self, prefix):
        super().__init__()
        self.mlp = nn.SequentialCell(nn.Dense(8, 12), nn.ReLU(), nn.Dense(12, OUT))
        self.update_parameters_name(prefix)

    def construct(self, x):
        return self.mlp(x)


class DINOLoss:
    def __init__(self, student_temp=0.2, teacher_temp=0.1, center_momentum=0.8):
        self.student_temp = student_temp
        self.teacher_temp = teacher_temp
        self.center_momentum = center_momentum
        self.center = ops.zeros((1, OUT), ms.float32)

    def targets(self, teacher_out):
        return ops.softmax((teacher_out - self.center) / self.teacher_temp, 1)

    def __call__(self, student_out, targets):
        return -(targets * ops.log_softmax(student_out / self.student_temp, 1)).sum(1).mean()

    def update_center(self, teacher_out):
        mean = teacher_out.mean(0).reshape((1, OUT))
        self.center = self.center * self.center_momentum + mean * (1 - self.center_momentum)


student, teacher = DINOHead("student."), DINOHead("teacher.")
for p_t, p_s in zip(teacher.get_parameters(), student.get_parameters()):
    ops.assign(p_t, Tensor(p_s.asnumpy().copy()))
    p_t.requires_grad = False

dino = DINOLoss()
opt = nn.Adam(student.trainable_params(), learning_rate=5e-3)
vg = ms.value_and_grad(lambda x, t: dino(student(x), t), None, student.trainable_params())


def ema_update(m=0.9):
    for p_t, p_s in zip(teacher.get_parameters(), student.get_parameters()):
        ops.assign(p_t, p_t * m + p_s * (1 - m))


def view(x):
    return Tensor((x + 0.2 * np.random.randn(*x.shape)).astype(np.float32))


data = np.random.RandomState(0).randn(64, 8).astype(np.float32)
batches = ck.data.resumable([(data[i : i + 8],) for i in range(0, 64, 8)], epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([student, teacher, opt], batches)
    manager.restore(state)
    for (x,) in batches:
        manager.fence()
        t_out = teacher(view(x))
        loss, grads = vg(view(x), dino.targets(t_out))
        opt(grads)
        dino.update_center(t_out)
        ema_update()
        manager.step(state, {"loss": loss})
    manager.save_final(state)
os._exit(0)
