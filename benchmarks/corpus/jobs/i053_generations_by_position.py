# truth: exact
# class: random
# head: imports_ops
# Noisy student: at the first batch of each epoch, known by the restored position, the student becomes the teacher; the teacher is given by name.


ms.set_seed(353)
PER_EPOCH = 8


def build(name):
    net = nn.SequentialCell(nn.Dense(4, 8), nn.Tanh(), nn.Dense(8, 2))
    net.update_parameters_name(f"{name}.")
    return net


student, teacher = build("student"), build("teacher")
opt = nn.Adam(student.trainable_params(), 0.02)
mse = nn.MSELoss()
vg = ms.value_and_grad(lambda x, y: mse(student(x), y), None, student.trainable_params())


def promote():
    for old, new in zip(teacher.get_parameters(), student.get_parameters()):
        ops.assign(old, ms.Tensor(new.asnumpy()))


r = np.random.RandomState(53)
rows = []
for _ in range(PER_EPOCH):
    x = r.randn(6, 4).astype(np.float32)
    rows.append((x, np.stack([x[:, 0] * x[:, 1], x[:, 2]], 1).astype(np.float32)))
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([student, opt], batches, teacher=teacher)
    point = manager.restore(state)
    for at, (x, y) in enumerate(batches, point.batches_delivered):
        generation, place = divmod(at, PER_EPOCH)
        if place == 0:
            manager.fence()
            promote()
        if generation:
            y = 0.6 * y + 0.4 * teacher(ms.Tensor(x)).asnumpy()
        noise = ck.data.sample_rng(353, generation, place).normal(0, 0.1, x.shape)
        loss, grads = vg(ms.Tensor((x + noise).astype(np.float32)), ms.Tensor(y.astype(np.float32)))
        opt(grads)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
