# truth: exact
# class: attribute
# head: pynative_hashlib_dataset_ops
# Stochastic weight averaging: the average and its count are parameters of a cell in the list; it is swapped in at the end.

ms.set_seed(66)


class Average(nn.Cell):
    def __init__(self, params):
        super().__init__()
        self.source = list(params)
        self.mean = ms.ParameterTuple(self.source).clone(prefix="swa", init="zeros")
        for p in self.mean:
            p.requires_grad = False
        self.count = ms.Parameter(ms.Tensor(0.0, ms.float32), name="swa_count", requires_grad=False)

    def update(self):
        ops.assign_add(self.count, ms.Tensor(1.0, ms.float32))
        for m, p in zip(self.mean, self.source):
            ops.assign(m, m + (p - m) / self.count)

    def swap_in(self):
        for m, p in zip(self.mean, self.source):
            ops.assign(p, m)


r = np.random.RandomState(56)
x = r.randn(60, 5).astype(np.float32)
y = np.sin(x[:, :1] + x[:, 1:2]).astype(np.float32)
data = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=True).batch(6)
net = nn.SequentialCell(nn.Dense(5, 10), nn.Tanh(), nn.Dense(10, 1))
opt = nn.Momentum(net.trainable_params(), 0.1, 0.9)
mse = nn.MSELoss()
grad_fn = ms.value_and_grad(lambda a, b: mse(net(a), b), None, opt.parameters)
average = Average(net.trainable_params())
batches = ck.data.resumable(data, epochs=4)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt, average], batches)
    point = manager.restore(state)
    for number, (a, b) in enumerate(batches, point.batches_delivered):
        loss, grads = grad_fn(a, b)
        opt(grads)
        if number >= 12:
            average.update()
        manager.step(state)
    manager.save_final(state)
average.swap_in()
print(hashlib.sha256(b"".join(p.asnumpy().tobytes() for p in net.get_parameters())).hexdigest(), flush=True)
os._exit(0)
