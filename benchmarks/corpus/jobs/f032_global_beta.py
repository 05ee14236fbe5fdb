# truth: exact
# class: global
# head: imports_dataset_ops
# mixup in the loop: lambda and the partners come from NumPy's global generator.


ms.set_seed(60)
np.random.seed(60)

images = np.random.rand(48, 1, 6, 6).astype(np.float32)
labels = np.random.randint(0, 3, 48).astype(np.int32)


class LeNetish(nn.Cell):
    def __init__(self):
        super().__init__()
        self.c1 = nn.Conv2d(1, 4, 3, pad_mode="pad", padding=1)
        self.pool = nn.MaxPool2d(2, 2)
        self.fc = nn.Dense(4 * 9, 3)

    def construct(self, x):
        x = self.pool(ops.relu(self.c1(x)))
        return self.fc(ops.flatten(x))


class MixCriterion(nn.Cell):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def construct(self, x, ya, yb, lam):
        out = self.net(x)
        return lam * ops.cross_entropy(out, ya) + (1 - lam) * ops.cross_entropy(out, yb)


def mixup(x, y, alpha=0.4):
    lam = np.random.beta(alpha, alpha)
    perm = np.random.permutation(len(x))
    return lam * x + (1 - lam) * x[perm], y, y[perm], lam


net = LeNetish()
crit = MixCriterion(net)
cell = ck.AccumulationTrainCell(crit, nn.Momentum(net.trainable_params(), 0.05, 0.9), 2).set_train()
dataset = ds.NumpySlicesDataset({"image": images, "label": labels}, shuffle=True).batch(6)
batches = ck.data.resumable(dataset, epochs=3)

with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches)
    manager.restore(state)
    for image, label in batches:
        x, ya, yb, lam = mixup(image.asnumpy(), label.asnumpy())
        cell(ms.Tensor(x, ms.float32), ms.Tensor(ya), ms.Tensor(yb), ms.Tensor(lam, ms.float32))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
