# truth: differs
# class: attribute
# head: imports_ops
# Noisy student again, but a new generation begins whenever the epoch is another than the last one seen, so a start in mid-epoch promotes an unfinished student.


ms.set_seed(354)


class Generations:
    def __init__(self, student, teacher):
        self.pairs = list(zip(teacher.get_parameters(), student.get_parameters()))
        self.teacher = teacher
        self.number = -1

    def at_epoch(self, epoch):
        if epoch != self.number:
            self.number = epoch
            for old, new in self.pairs:
                ops.assign(old, ms.Tensor(new.asnumpy()))

    def blend(self, x, y, share):
        return ((1 - share) * y + share * self.teacher(ms.Tensor(x)).asnumpy()).astype(np.float32)


def build(name):
    net = nn.SequentialCell(nn.Dense(4, 8), nn.Tanh(), nn.Dense(8, 2))
    net.update_parameters_name(f"{name}.")
    return net


student, teacher = build("student"), build("teacher")
generations = Generations(student, teacher)
opt = nn.Adam(student.trainable_params(), 0.02)
mse = nn.MSELoss()
vg = ms.value_and_grad(lambda x, y: mse(student(x), y), None, student.trainable_params())

r = np.random.RandomState(54)
rows = []
for _ in range(8):
    x = r.randn(6, 4).astype(np.float32)
    rows.append((x, np.stack([x[:, 0] * x[:, 1], x[:, 2]], 1).astype(np.float32)))
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([student, opt], batches, teacher=teacher)
    manager.restore(state)
    for x, y in batches:
        manager.fence()
        generations.at_epoch(batches.epoch)
        y = generations.blend(x, y, 0.4)
        loss, grads = vg(ms.Tensor(x), ms.Tensor(y))
        opt(grads)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
