# truth: exact
# class: random
# head: imports_dataset
# R-Drop: two passes with different dropout have to agree; K grows during training; Model.fit.


ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(157)


class RDropLoss(nn.Cell):
    def __init__(self, network, weight=0.5):
        super().__init__()
        self.network, self.weight = network, weight
        self.ce = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")

    def construct(self, x, label):
        a, b = self.network(x), self.network(x)
        agreement = ((a - b) ** 2).mean()
        return 0.5 * (self.ce(a, label) + self.ce(b, label)) + self.weight * agreement


r = np.random.RandomState(58)
labels = r.randint(0, 4, 112).astype(np.int32)
x = (r.randn(112, 8) + np.eye(4)[labels].repeat(2, 1)).astype(np.float32)
train = ds.NumpySlicesDataset((x[:80], labels[:80]), ["x", "label"], shuffle=True).batch(8)
valid = ds.NumpySlicesDataset((x[80:], labels[80:]), ["x", "label"], shuffle=False).batch(16)

net = nn.SequentialCell(nn.Dense(8, 24), nn.ReLU(), ck.nn.Dropout(p=0.3, seed=58), nn.Dense(24, 4))
loss = RDropLoss(net)
optimizer = nn.AdamWeightDecay(loss.trainable_params(), 5e-3, weight_decay=0.01)
cell = ck.AccumulationTrainCell(loss, optimizer, accumulation_steps={0: 1, 6: 2, 12: 3}, clip_norm=2.0)
evaluate = nn.WithEvalCell(net, nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean"))
model = ms.Model(cell, eval_network=evaluate, eval_indexes=[0, 1, 2], metrics={"accuracy", "loss"})

ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.fit(model, 4, train, valid)
os._exit(0)
