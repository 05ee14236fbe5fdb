# truth: exact
# class: outside
# head: pynative_hashlib_dataset_ops
# Contrastive learning with a key encoder and a queue of negatives that are parameters of one cell.

ms.set_seed(50)


class MoCo(nn.Cell):
    def __init__(self, width=6, dim=4, size=16, momentum=0.9):
        super().__init__()
        self.query = nn.Dense(width, dim)
        self.key = nn.Dense(width, dim)
        for k, q in zip(self.key.get_parameters(), self.query.get_parameters()):
            k.set_data(q.value())
            k.requires_grad = False
        start = np.random.RandomState(1).randn(size, dim).astype(np.float32)
        self.queue = ms.Parameter(ms.Tensor(start), name="queue", requires_grad=False)
        self.pointer = ms.Parameter(ms.Tensor(0, ms.int32), name="pointer", requires_grad=False)
        self.momentum, self.size = momentum, size

    def construct(self, a, keys):
        q = self.query(a)
        positive = (q * keys).sum(1)
        negative = ops.matmul(q, self.queue.T)
        return ops.relu(1.0 - positive.expand_dims(1) + negative).mean() + 0.01 * (q * q).mean()

    def encode(self, b):
        for k, q in zip(self.key.get_parameters(), self.query.get_parameters()):
            ops.assign(k, self.momentum * k + (1 - self.momentum) * q)
        return ops.stop_gradient(ops.tanh(self.key(b)))

    def push(self, keys):
        at = int(self.pointer)
        whole = self.queue.asnumpy().copy()
        for row in keys.asnumpy():
            whole[at] = row
            at = (at + 1) % self.size
        ops.assign(self.queue, ms.Tensor(whole))
        ops.assign(self.pointer, ms.Tensor(at, ms.int32))


x = np.random.RandomState(40).randn(50, 6).astype(np.float32)
data = ds.NumpySlicesDataset((x,), ["x"], shuffle=True).batch(5)
net = MoCo()
opt = nn.Momentum(net.trainable_params(), 0.05, 0.9)
grad_fn = ms.value_and_grad(net, None, opt.parameters)
batches = ck.data.resumable(data, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    for (a,) in batches:
        view = a + ms.Tensor(np.random.normal(0, 0.1, a.shape).astype(np.float32))
        keys = net.encode(view)
        loss, grads = grad_fn(a, keys)
        opt(grads)
        net.push(keys)
        manager.step(state, {"loss": loss})
    manager.save_final(state)
print(hashlib.sha256(b"".join(p.asnumpy().tobytes() for p in net.get_parameters())).hexdigest(), flush=True)
os._exit(0)
