# truth: exact
# class: attribute
# head: pynative_dataset_ops
# Before each update the weights are copied, so that a step with a loss that is not finite can be taken back.

ms.set_seed(143)


class Guard:
    def __init__(self, params):
        self.params, self.good, self.rollbacks = params, None, 0

    def remember(self):
        self.good = [p.asnumpy().copy() for p in self.params]

    def take_back(self):
        self.rollbacks += 1
        for p, value in zip(self.params, self.good):
            ops.assign(p, ms.Tensor(value))


r = np.random.RandomState(45)
x = r.randn(60, 6).astype(np.float32)
y = (x[:, :1] - np.abs(x[:, 1:2])).astype(np.float32)
train = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=True).batch(6)
net = nn.SequentialCell(nn.Dense(6, 12), nn.ReLU(), nn.Dense(12, 1))
loss = nn.WithLossCell(net, nn.MSELoss())
step = nn.TrainOneStepCell(loss, nn.Momentum(net.trainable_params(), 0.02, 0.9)).set_train()
guard = Guard(net.trainable_params())

batches = ck.data.resumable(train, epochs=4)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(step, batches)
    manager.restore(state)
    for xb, yb in batches:
        guard.remember()
        value = step(xb, yb)
        if not np.isfinite(value.asnumpy()):
            manager.fence()
            guard.take_back()
        manager.step(state, {"loss": value})
    manager.save_final(state)
print(f"{guard.rollbacks} steps were taken back")
os._exit(0)
