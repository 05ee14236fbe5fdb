# truth: differs
# class: attribute
# head: imports_hashlib_dataset
# A reward normaliser is given by name, but its state_dict leaves out the count of the running variance.


ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(35)


class RunningNorm:
    """Welford's algorithm."""

    def __init__(self, width):
        self.mean = np.zeros(width)
        self.m2 = np.ones(width)
        self.count = 0

    def update(self, rows):
        for row in rows:
            self.count += 1
            delta = row - self.mean
            self.mean = self.mean + delta / self.count
            self.m2 = self.m2 + delta * (row - self.mean)

    def __call__(self, rows):
        return ((rows - self.mean) / np.sqrt(self.m2 / max(1, self.count) + 1e-3)).astype(np.float32)

    def state_dict(self):
        return {"mean": self.mean, "m2": self.m2}

    def load_state_dict(self, state):
        self.mean, self.m2 = state["mean"], state["m2"]


r = np.random.RandomState(25)
x = (r.randn(64, 5) * [1, 10, 0.1, 3, 5] + 2).astype(np.float32)
y = (x[:, :1] + 0.1 * x[:, 1:2]).astype(np.float32)
data = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=True).batch(8)
net = nn.SequentialCell(nn.Dense(5, 8), nn.Tanh(), nn.Dense(8, 1))
opt = nn.Adam(net.trainable_params(), 0.02)
mse = nn.MSELoss()
grad_fn = ms.value_and_grad(lambda a, b: mse(net(a), b), None, opt.parameters)
norm = RunningNorm(5)
batches = ck.data.resumable(data, epochs=4)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches, norm=norm)
    manager.restore(state)
    for a, b in batches:
        rows = a.asnumpy()
        norm.update(rows)
        loss, grads = grad_fn(ms.Tensor(norm(rows)), b)
        opt(grads)
        manager.step(state)
    manager.save_final(state)
print(hashlib.sha256(b"".join(p.asnumpy().tobytes() for p in net.get_parameters())).hexdigest(), flush=True)
os._exit(0)
