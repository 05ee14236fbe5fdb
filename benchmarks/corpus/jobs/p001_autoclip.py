# truth: differs
# class: attribute
# head: pynative_dataset_ops
# AutoClip: gradients are clipped at the 40th percentile of all norms so far.

ms.set_seed(101)


class AutoClip:
    def __init__(self, percentile=40):
        self.percentile = percentile
        self.history = []

    def __call__(self, grads):
        norm = float(ops.sqrt(sum((g * g).sum() for g in grads)).asnumpy())
        self.history.append(norm)
        limit = float(np.percentile(self.history, self.percentile))
        factor = min(1.0, limit / (norm + 1e-9))
        return tuple(g * factor for g in grads)


r = np.random.RandomState(1)
x = r.randn(80, 6).astype(np.float32)
y = (np.tanh(x[:, :1]) - 0.5 * x[:, 1:2] * x[:, 2:3]).astype(np.float32)
train = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=True).batch(8)

net = nn.SequentialCell(nn.Dense(6, 16), nn.Tanh(), nn.Dense(16, 1))
optimizer = nn.Momentum(net.trainable_params(), 0.05, 0.9)
loss_fn = nn.MSELoss()
grad_fn = ms.value_and_grad(lambda x, y: loss_fn(net(x), y), None, net.trainable_params())
clip = AutoClip()

batches = ck.data.resumable(train, epochs=4)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, optimizer], batches)
    manager.restore(state)
    for xb, yb in batches:
        loss, grads = grad_fn(xb, yb)
        optimizer(clip(grads))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
