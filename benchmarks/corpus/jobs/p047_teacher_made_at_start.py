# truth: exact
# class: attribute
# head: imports_dataset
# Every start trains a small linear teacher in closed form on the same data, then distils it into the student.


ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(147)


def random_features(x, width=30, seed=49):
    r = np.random.RandomState(seed)
    return np.cos(x @ r.randn(x.shape[1], width) + r.rand(width) * 2 * np.pi)


class Teacher:
    def __init__(self, x, y, ridge=0.1):
        f = random_features(x)
        self.weight = np.linalg.solve(f.T @ f + ridge * np.eye(f.shape[1]), f.T @ y)

    def __call__(self, x):
        return (random_features(x) @ self.weight).astype(np.float32)


r = np.random.RandomState(50)
x = r.randn(80, 6).astype(np.float32)
y = (np.sin(x[:, :1]) * x[:, 1:2] + 0.3 * r.randn(80, 1)).astype(np.float32)
teacher = Teacher(x, y)
train = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=True).batch(8)
student = nn.SequentialCell(nn.Dense(6, 10), nn.Tanh(), nn.Dense(10, 1))
optimizer = nn.Adam(student.trainable_params(), 1e-2)


def forward(x, y, soft):
    out = student(x)
    return 0.3 * ((out - y) ** 2).mean() + 0.7 * ((out - soft) ** 2).mean()


grad_fn = ms.value_and_grad(forward, None, student.trainable_params())
batches = ck.data.resumable(train, epochs=4)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([student, optimizer], batches)
    manager.restore(state)
    for xb, yb in batches:
        loss, grads = grad_fn(xb, yb, ms.Tensor(teacher(xb.asnumpy())))
        optimizer(grads)
        manager.step(state, {"loss": loss})
    manager.save_final(state)
os._exit(0)
