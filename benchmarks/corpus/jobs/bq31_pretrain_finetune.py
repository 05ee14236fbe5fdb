# truth: exact
# class: attribute
# head: imports_dataset_ops


ROOT = os.environ["ROOT"]
ms.set_seed(77)


class Backbone(nn.Cell):
    def __init__(self):
        super().__init__()
        self.layers = nn.SequentialCell(nn.Dense(8, 16), nn.ReLU(), nn.Dense(16, 8))

    def construct(self, x):
        return self.layers(x)


class Reconstruction(nn.Cell):
    def __init__(self, backbone):
        super().__init__()
        self.backbone, self.decoder = backbone, nn.Dense(8, 8)

    def construct(self, noisy, clean):
        return ((self.decoder(self.backbone(noisy)) - clean) ** 2).mean()


class Classifier(nn.Cell):
    def __init__(self, backbone):
        super().__init__()
        self.backbone, self.head = backbone, nn.Dense(8, 2)

    def construct(self, x, y):
        return ops.cross_entropy(self.head(self.backbone(x)), y)


def loop(root, cell, data, epochs):
    cell.set_train()
    loss = None
    for columns in ck.loop(
        root, data, epochs=epochs, train=cell, save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
    ):
        loss = cell(*columns)
    return loss


rng = np.random.default_rng(4)
x = rng.normal(size=(96, 8)).astype(np.float32)
noisy = (x + rng.normal(0, 0.2, x.shape)).astype(np.float32)
y = (x[:, 0] * x[:, 1] > 0).astype(np.int32)
backbone = Backbone()

pretraining = Reconstruction(backbone)
pretrain_cell = nn.TrainOneStepCell(pretraining, nn.Adam(pretraining.trainable_params(), 0.01))
loop(f"{ROOT}/pretrain", pretrain_cell, ds.NumpySlicesDataset((noisy, x), ["a", "b"], shuffle=True).batch(8), 1)

classifier = Classifier(backbone)
groups = [
    {"params": classifier.backbone.trainable_params(), "lr": 0.002},
    {"params": classifier.head.trainable_params(), "lr": 0.02},
]
finetune_cell = nn.TrainOneStepCell(classifier, nn.Adam(groups))
loop(f"{ROOT}/finetune", finetune_cell, ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=True).batch(8), 3)
os._exit(0)
