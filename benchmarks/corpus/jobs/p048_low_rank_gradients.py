# truth: differs
# class: attribute
# head: imports_dataset
# GaLore: large gradients are projected on their leading directions, which are found anew every 12 steps.


ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(148)


class Projector:
    def __init__(self, rank, every):
        self.rank, self.every = rank, every
        self.bases = {}

    def __call__(self, name, grad, step):
        if name not in self.bases or step % self.every == 0:
            u, _, _ = np.linalg.svd(grad, full_matrices=False)
            self.bases[name] = u[:, : self.rank]
        basis = self.bases[name]
        return basis @ (basis.T @ grad)


r = np.random.RandomState(51)
x = r.randn(80, 10).astype(np.float32)
y = np.tanh(x @ r.randn(10, 4)).astype(np.float32)
train = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=True).batch(8)
net = nn.SequentialCell(nn.Dense(10, 20), nn.Tanh(), nn.Dense(20, 4))
optimizer = nn.Adam(net.trainable_params(), 1e-2)
grad_fn = ms.value_and_grad(lambda x, y: ((net(x) - y) ** 2).mean(), None, net.trainable_params())
project = Projector(rank=2, every=12)

batches = ck.data.resumable(train, epochs=4)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, optimizer], batches)
    manager.restore(state)
    for xb, yb in batches:
        loss, grads = grad_fn(xb, yb)
        step = int(optimizer.global_step.asnumpy()[0])
        low = []
        for p, g in zip(net.trainable_params(), grads):
            low.append(ms.Tensor(project(p.name, g.asnumpy(), step)) if g.ndim == 2 else g)
        optimizer(tuple(low))
        manager.step(state, {"loss": loss})
    manager.save_final(state)
os._exit(0)
