# truth: differs
# class: random
# head: imports_dataset
# CutMix inside the train cell; where it cuts and which rows it mixes comes from a generator that the cell makes in __init__ and that nothing stores.


ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(3511)
SIDE = 6


class CutMixStep(nn.TrainOneStepCell):
    def __init__(self, network, optimizer, seed):
        super().__init__(network, optimizer)
        self.rng = np.random.default_rng(seed)

    def cut(self):
        size = int(self.rng.integers(1, SIDE))
        top, left = self.rng.integers(0, SIDE - size + 1, 2)
        mask = np.ones((1, 1, SIDE, SIDE), np.float32)
        mask[..., top : top + size, left : left + size] = 0
        return mask

    def construct(self, image, target):
        mask = self.cut()
        share = float(mask.mean())
        partner = ms.Tensor(self.rng.permutation(image.shape[0]).astype(np.int32))
        mask = ms.Tensor(mask)
        image = mask * image + (1 - mask) * image[partner]
        target = share * target + (1 - share) * target[partner]
        return super().construct(image, target)


r = np.random.RandomState(11)
labels = r.randint(0, 3, 60)
images = (r.randn(60, 1, SIDE, SIDE) * 0.5 + (labels - 1)[:, None, None, None]).astype(np.float32)
onehot = np.eye(3, dtype=np.float32)[labels]
train = ds.NumpySlicesDataset((images, onehot), ["image", "target"], shuffle=True).batch(6)
net = nn.SequentialCell(nn.Conv2d(1, 3, 3, pad_mode="same"), nn.ReLU(), nn.Flatten(), nn.Dense(3 * SIDE * SIDE, 3))
step = CutMixStep(nn.WithLossCell(net, nn.MSELoss()), nn.Momentum(net.trainable_params(), 0.02, 0.9), seed=11)

ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(ms.Model(step), 3, train)
os._exit(0)
