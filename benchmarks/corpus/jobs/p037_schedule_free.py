# truth: exact
# class: attribute
# head: pynative_dataset_ops
# Schedule-free SGD by hand: z takes the steps, x averages them, and gradients are taken between the two.

ms.set_seed(137)


class ScheduleFree(nn.Cell):
    def __init__(self, params, rate, beta=0.9, warmup=6):
        super().__init__()
        self.y = ms.ParameterTuple(params)
        self.z = self.y.clone(prefix="z", init="same")
        self.x = self.y.clone(prefix="x", init="same")
        self.step = ms.Parameter(ms.Tensor(0, ms.int32), name="sf_step", requires_grad=False)
        self.weights = ms.Parameter(ms.Tensor(0.0, ms.float32), name="sf_weights", requires_grad=False)
        self.rate, self.beta, self.warmup = rate, beta, warmup

    def construct(self, grads):
        ops.assign_add(self.step, ms.Tensor(1, ms.int32))
        rate = self.rate * min(1.0, int(self.step.asnumpy()) / self.warmup)
        ops.assign_add(self.weights, ms.Tensor(rate**2, ms.float32))
        c = rate**2 / float(self.weights.asnumpy())
        for g, y, z, x in zip(grads, self.y, self.z, self.x):
            ops.assign_sub(z, rate * g)
            ops.assign(x, (1 - c) * x + c * z)
            ops.assign(y, (1 - self.beta) * z + self.beta * x)


r = np.random.RandomState(39)
labels = r.randint(0, 4, 72).astype(np.int32)
data = (r.randn(72, 8) + np.eye(4)[labels].repeat(2, 1)).astype(np.float32)
train = ds.NumpySlicesDataset((data, labels), ["x", "label"], shuffle=True).batch(8)
net = nn.SequentialCell(nn.Dense(8, 16), nn.ReLU(), nn.Dense(16, 4))
method = ScheduleFree(net.trainable_params(), rate=0.3)
ce = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
grad_fn = ms.value_and_grad(lambda x, y: ce(net(x), y), None, net.trainable_params())

batches = ck.data.resumable(train, epochs=4)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, method], batches)
    manager.restore(state)
    for xb, label in batches:
        loss, grads = grad_fn(xb, label)
        manager.fence()
        method(grads)
        manager.step(state, {"loss": loss})
    manager.save_final(state)
os._exit(0)
