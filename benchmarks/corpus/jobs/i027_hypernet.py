# truth: exact
# class: attribute
# head: imports_parameter
# A hypernetwork makes the weights of a small target network from a task embedding; generated weights are printed as norms and kept by nobody.


ms.set_seed(327)


class HyperNetwork(nn.Cell):
    def __init__(self, tasks, z_dim, in_dim, hidden):
        super().__init__()
        r = np.random.RandomState(0)
        self.z = Parameter(Tensor((0.5 * r.randn(tasks, z_dim)).astype(np.float32)), name="z")
        self.shapes = ((hidden, in_dim), (hidden,), (1, hidden), (1,))
        self.sizes = tuple(int(np.prod(s)) for s in self.shapes)
        self.body = nn.SequentialCell(nn.Dense(z_dim, 12), nn.Tanh(), nn.Dense(12, sum(self.sizes)))

    def generate(self, task):
        flat = self.body(self.z[task].reshape((1, -1)))[0]
        at, out = 0, []
        for size, shape in zip(self.sizes, self.shapes):
            out.append(flat[at : at + size].reshape(shape))
            at += size
        return out

    def construct(self, x, task):
        w1, b1, w2, b2 = self.generate(task)
        h = ops.tanh(ops.matmul(x, w1.T) + b1)
        return ops.matmul(h, w2.T) + b2


class LossCell(nn.Cell):
    def __init__(self, hyper):
        super().__init__()
        self.hyper = hyper
        self.mse = nn.MSELoss()

    def construct(self, x, y, task):
        return self.mse(self.hyper(x, int(task)), y)


TASKS = 3
hyper = HyperNetwork(TASKS, 4, 2, 5)
loss_cell = LossCell(hyper)
opt = nn.Adam(hyper.trainable_params(), 0.01)
vg = ms.value_and_grad(loss_cell, None, hyper.trainable_params())
r = np.random.RandomState(3)
samples = []
for k in range(8):
    task = k % TASKS
    x = r.randn(6, 2).astype(np.float32)
    samples.append((x, ((task - 1) * x[:, :1] + 0.5 * x[:, 1:] ** 2).astype(np.float32), np.array(task, np.int32)))

norms = {}
batches = ck.data.resumable(samples, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([hyper, opt], batches)
    manager.restore(state)
    for x, y, task in batches:
        loss, grads = vg(Tensor(x), Tensor(y), int(task))
        opt(grads)
        norms.setdefault(int(task), []).append(round(float(ops.abs(hyper.generate(int(task))[0]).mean().asnumpy()), 3))
        manager.step(state)
    print(norms)
    manager.save_final(state)
os._exit(0)
