# truth: exact
# class: data
# head: imports_dataset
# CutMix in the pipeline's batch function; its generator is made of the epoch's and the batch's numbers.


ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(108)


def cutmix(images, targets, info):
    rng = np.random.default_rng([108, info.get_epoch_num(), info.get_batch_num()])
    images, targets = np.stack(images), np.stack(targets)
    order = rng.permutation(len(images))
    size = rng.integers(2, 6)
    top, left = rng.integers(0, 8 - size + 1, 2)
    mixed = images.copy()
    mixed[:, :, top : top + size, left : left + size] = images[order][:, :, top : top + size, left : left + size]
    share = np.float32(1 - size * size / 64)
    return list(mixed), list(targets * share + targets[order] * (1 - share))


class Loss(nn.Cell):
    def __init__(self, network):
        super().__init__()
        self.network = network
        self.ce = nn.SoftmaxCrossEntropyWithLogits(sparse=False, reduction="mean")

    def construct(self, image, target):
        return self.ce(self.network(image), target)


r = np.random.RandomState(8)
labels = r.randint(0, 4, 80)
images = (r.randn(80, 1, 8, 8) + labels[:, None, None, None] * 0.5).astype(np.float32)
train = ds.NumpySlicesDataset((images, np.eye(4, dtype=np.float32)[labels]), ["image", "target"], shuffle=True)
train = train.batch(8, per_batch_map=cutmix)

net = nn.SequentialCell(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Dense(256, 4))
loss = Loss(net)
cell = ck.AccumulationTrainCell(loss, nn.Adam(loss.trainable_params(), 2e-3), accumulation_steps=2, clip_norm=1.0)

ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(ms.Model(cell), 4, train)
os._exit(0)
