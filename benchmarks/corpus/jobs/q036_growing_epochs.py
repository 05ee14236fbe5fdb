# truth: exact
# class: data
# head: imports_hashlib
# A curriculum loader whose epochs get longer: each epoch lets in more of the hard samples.


ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(46)


class Growing:
    def __init__(self, x, y, size):
        order = np.argsort(np.abs(y[:, 0]))
        self.x, self.y, self.size, self.epoch = x[order], y[order], size, 0

    def __iter__(self):
        self.epoch += 1
        n = min(len(self.x), 24 * self.epoch)
        for i in np.random.RandomState(self.epoch).permutation(n // self.size):
            part = slice(i * self.size, (i + 1) * self.size)
            yield ms.Tensor(self.x[part]), ms.Tensor(self.y[part])


r = np.random.RandomState(36)
x = r.randn(96, 4).astype(np.float32)
y = (x[:, :1] * 2).astype(np.float32)
net = nn.SequentialCell(nn.Dense(4, 8), nn.Tanh(), nn.Dense(8, 1))
opt = nn.Adam(net.trainable_params(), 0.01)
mse = nn.MSELoss()
grad_fn = ms.value_and_grad(lambda a, b: mse(net(a), b), None, opt.parameters)
batches = ck.data.resumable(Growing(x, y, 6), epochs=4)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    for a, b in batches:
        loss, grads = grad_fn(a, b)
        opt(grads)
        manager.step(state)
    manager.save_final(state)
print(hashlib.sha256(b"".join(p.asnumpy().tobytes() for p in net.get_parameters())).hexdigest(), flush=True)
os._exit(0)
