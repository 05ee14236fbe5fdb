# truth: differs
# class: attribute
# head: imports_ops
# Temporal ensembling (Laine & Aila): running predictions by sample number in a NumPy array that is changed in place.


ms.set_seed(19)
NUM, CLASSES = 48, 3
ENSEMBLE = np.zeros((NUM, CLASSES), np.float32)

rs = np.random.RandomState(19)
IMAGES = rs.rand(NUM, 1, 5, 5).astype(np.float32)
LABELS = rs.randint(0, CLASSES, NUM).astype(np.int32)


class Classifier(nn.Cell):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, has_bias=True)
        self.fc = nn.Dense(100, CLASSES)

    def construct(self, x):
        h = ops.tanh(self.conv(x))
        return ops.softmax(self.fc(h.reshape(x.shape[0], -1)), axis=1)


class SemiLoss(nn.Cell):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def construct(self, x, onehot, known, z):
        p = self.net(x)
        sup = (((p - onehot) ** 2).sum(1) * known).mean()
        unsup = ((p - z) ** 2).mean()
        return sup + 2.0 * unsup


net = Classifier()
semi = SemiLoss(net)
cell = ck.AccumulationTrainCell(semi, nn.Adam(semi.trainable_params(), 0.005), 2).set_train()

ids = [np.arange(k, NUM, 8) for k in range(8)]
batches = ck.data.resumable(ids, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches)
    manager.restore(state)
    for idx in batches:
        x = ms.Tensor(IMAGES[idx])
        onehot = np.eye(CLASSES, dtype=np.float32)[LABELS[idx]]
        known = (idx % 4 == 0).astype(np.float32)
        target = ENSEMBLE[idx] / (1 - 0.6 ** (batches.epoch + 1))
        cell(x, ms.Tensor(onehot), ms.Tensor(known), ms.Tensor(target, ms.float32))
        ENSEMBLE[idx] *= 0.6
        ENSEMBLE[idx] += 0.4 * net(x).asnumpy()
        manager.step(state)
    manager.save_final(state)
os._exit(0)
