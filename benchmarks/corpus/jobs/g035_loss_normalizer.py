# truth: differs
# class: attribute
# head: pynative_dataset_ops
# A RetinaNet-like focal loss is divided by a running average of the number of positive anchors, a float of the loss cell.

ms.set_seed(58)


class FocalLoss(nn.Cell):
    def __init__(self, alpha=0.25, gamma=2.0):
        super().__init__()
        self.alpha, self.gamma = alpha, gamma
        self.loss_normalizer = 10.0  # as in detectron2
        self.loss_normalizer_momentum = 0.8

    def construct(self, logits, target):
        num_pos = max(float(target.sum().asnumpy()), 1.0)
        self.loss_normalizer = (
            self.loss_normalizer_momentum * self.loss_normalizer + (1 - self.loss_normalizer_momentum) * num_pos
        )
        p = ops.sigmoid(logits)
        pt = p * target + (1 - p) * (1 - target)
        a = self.alpha * target + (1 - self.alpha) * (1 - target)
        focal = -a * (1 - pt) ** self.gamma * ops.log(pt + 1e-6)
        return focal.sum() / self.loss_normalizer


class Detector(nn.Cell):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Conv2d(1, 6, 3, pad_mode="same", has_bias=True)
        self.head = nn.Conv2d(6, 1, 1, has_bias=True)

    def construct(self, x):
        return self.head(ops.relu(self.backbone(x)))


def synthetic(n=48, size=8):
    rng = np.random.RandomState(0)
    imgs = rng.rand(n, 1, size, size).astype(np.float32) * 0.5
    masks = np.zeros_like(imgs)
    for k in range(n):
        for _ in range(rng.randint(1, 5)):
            i, j = rng.randint(0, size - 1, 2)
            imgs[k, 0, i : i + 2, j : j + 2] += 1
            masks[k, 0, i : i + 2, j : j + 2] = 1
    return imgs, masks


dataset = ds.NumpySlicesDataset(synthetic(), ["image", "mask"], shuffle=True).batch(6)
detector = Detector()
optimizer = nn.Momentum(detector.trainable_params(), learning_rate=0.02, momentum=0.9)
model = ms.Model(detector, FocalLoss(), optimizer)

ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
point = ckpt.resume(model, dataset, epochs=3)
if not point.complete:
    model.train(3, dataset, callbacks=[ckpt], initial_epoch=point.epoch)
os._exit(0)
