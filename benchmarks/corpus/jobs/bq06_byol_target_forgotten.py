# truth: differs
# class: attribute
# head: root_dataset_tensor_ops

ms.set_seed(5)


def make_encoder(prefix):
    net = nn.SequentialCell(nn.Dense(10, 16), nn.ReLU(), nn.Dense(16, 8))
    net.update_parameters_name(prefix)
    return net


class BYOL:
    def __init__(self, momentum=0.9):
        self.online, self.target = make_encoder("online."), make_encoder("target.")
        self.predictor = nn.SequentialCell(nn.Dense(8, 8), nn.ReLU(), nn.Dense(8, 8))
        self.momentum = momentum
        for p, t in zip(self.online.get_parameters(), self.target.get_parameters()):
            t.set_data(p.data)
        self.params = list(self.online.trainable_params()) + list(self.predictor.trainable_params())

    def loss(self, a, b):
        p = self.predictor(self.online(a))
        t = ops.stop_gradient(self.target(b))
        return ((p - t) ** 2).mean()

    def update_target(self):
        for p, t in zip(self.online.get_parameters(), self.target.get_parameters()):
            t.set_data(self.momentum * t + (1 - self.momentum) * p)


byol = BYOL()
optimizer = nn.Adam(byol.params, 0.01)
grad_fn = ms.value_and_grad(lambda a, b: byol.loss(a, b) + byol.loss(b, a), None, optimizer.parameters)
x = np.random.default_rng(0).normal(size=(96, 10)).astype(np.float32)
dataset = ds.NumpySlicesDataset({"x": x}, shuffle=True).batch(8)
batches = ck.data.resumable(dataset, epochs=3)
with ck.CheckpointManager(ROOT, save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")) as manager:
    state = ck.StateManager([byol.online, byol.predictor, optimizer], batches)
    manager.restore(state)
    for (x,) in batches:
        a = x + Tensor(np.random.normal(0, 0.1, x.shape), ms.float32)
        b = x + Tensor(np.random.normal(0, 0.1, x.shape), ms.float32)
        loss, grads = grad_fn(a, b)
        optimizer(grads)
        byol.update_target()
        manager.step(state)
    manager.save_final(state)
os._exit(0)
