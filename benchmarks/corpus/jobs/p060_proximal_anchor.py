# truth: differs
# class: attribute
# head: pynative_dataset_ops
# Elastic pull: weights are drawn to an anchor, a copy of themselves that is renewed every seven batches.

ms.set_seed(160)


class Anchor:
    def __init__(self, params, strength):
        self.params, self.strength = params, strength
        self.renew()

    def renew(self):
        self.values = [ms.Tensor(p.asnumpy().copy()) for p in self.params]

    def pull(self):
        for p, value in zip(self.params, self.values):
            ops.assign_sub(p, self.strength * (p - value))


r = np.random.RandomState(61)
labels = r.randint(0, 3, 60).astype(np.int32)
x = (r.randn(60, 6) + np.eye(3)[labels].repeat(2, 1)).astype(np.float32)
train = ds.NumpySlicesDataset((x, labels), ["x", "label"], shuffle=True).batch(6)
net = nn.SequentialCell(nn.Dense(6, 16), nn.ReLU(), nn.Dense(16, 3))
loss = nn.WithLossCell(net, nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean"))
cell = ck.AccumulationTrainCell(loss, nn.Adam(net.trainable_params(), 1e-2), 2).set_train()
anchor = Anchor(net.trainable_params(), 0.1)

batches = ck.data.resumable(train, epochs=4)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches)
    point = manager.restore(state)
    for number, (xb, label) in enumerate(batches, point.batches_delivered + 1):
        value = cell(xb, label)
        manager.fence()
        anchor.pull()
        if number % 7 == 0:
            anchor.renew()
        manager.step(state, {"loss": value})
    manager.save_final(state)
os._exit(0)
