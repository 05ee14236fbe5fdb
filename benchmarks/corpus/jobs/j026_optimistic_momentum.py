# truth: exact
# class: attribute
# head: pynative_dataset_ops
# Optimistic gradients in a subclass of nn.Momentum: the gradients of the step before are a cloned ParameterTuple of the optimizer.

ms.set_seed(3126)


class OptimisticMomentum(nn.Momentum):
    def __init__(self, params, *args, **kwargs):
        super().__init__(params, *args, **kwargs)
        self.before = self.parameters.clone(prefix="before", init="zeros")

    def construct(self, gradients):
        ahead = tuple(1.5 * g - 0.5 * b for g, b in zip(gradients, self.before))
        for b, g in zip(self.before, gradients):
            ops.assign(b, g)
        return super().construct(ahead)


r = np.random.RandomState(26)
x = r.rand(48, 3).astype(np.float32)
y = np.stack([x.prod(1), x.max(1)], 1).astype(np.float32)
net = nn.SequentialCell(nn.Dense(3, 9), nn.Tanh(), nn.Dense(9, 2))
opt = OptimisticMomentum(net.trainable_params(), 0.1, 0.8)
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(ms.Model(net, nn.MSELoss(), opt), 3, ds.NumpySlicesDataset((x, y), ["x", "y"]).batch(6))
os._exit(0)
