# truth: exact, may be named
# class: variable
# head: pynative_hashlib_dataset_ops
# A teacher is trained for a moment by the same script (the same at each start), then a student learns from it.

ms.set_seed(58)
r = np.random.RandomState(48)
x = r.randn(48, 5).astype(np.float32)
y = np.sin(x[:, :1]).astype(np.float32)


def make_teacher():
    teacher = nn.SequentialCell(nn.Dense(5, 16), nn.Tanh(), nn.Dense(16, 1))
    teacher.update_parameters_name("teacher.")
    mse = nn.MSELoss()
    grad_fn = ms.value_and_grad(lambda a, b: mse(teacher(a), b), None, teacher.trainable_params())
    for _ in range(20):
        _, grads = grad_fn(ms.Tensor(x), ms.Tensor(y))
        for p, g in zip(teacher.trainable_params(), grads):
            ops.assign_sub(p, 0.1 * g)
    return teacher.set_train(False)


def main():
    teacher = make_teacher()
    student = nn.SequentialCell(nn.Dense(5, 6), nn.Tanh(), nn.Dense(6, 1))
    opt = nn.Adam(student.trainable_params(), 0.02)

    def forward(a, b, soft):
        out = student(a)
        return 0.3 * ((out - b) ** 2).mean() + 0.7 * ((out - soft) ** 2).mean()

    grad_fn = ms.value_and_grad(forward, None, opt.parameters)
    data = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=True).batch(6)
    for a, b in ck.loop(
        os.environ["ROOT"],
        data,
        epochs=4,
        train=[student, opt],
        save=ck.SaveEvery(micro_steps=5),
        saving=ck.Saving(when_busy="wait"),
    ):
        soft = ops.stop_gradient(teacher(a))
        loss, grads = grad_fn(a, b, soft)
        opt(grads)
    return student


net = main()
print(hashlib.sha256(b"".join(p.asnumpy().tobytes() for p in net.get_parameters())).hexdigest(), flush=True)
os._exit(0)
