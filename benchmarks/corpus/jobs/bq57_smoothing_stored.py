# truth: exact
# class: random
# head: imports_dataset_ops


ROOT = os.environ["ROOT"]
ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(6)


class SmoothLoss(nn.Cell):
    def __init__(self, classes, smoothing):
        super().__init__()
        self.classes, self.smoothing = classes, smoothing

    def construct(self, logits, label):
        return ops.cross_entropy(logits, label, label_smoothing=self.smoothing)


class LinearSchedule:
    def __init__(self, target, name, start, end, epochs):
        self.target, self.name = target, name
        self.start, self.end, self.epochs = start, end, epochs
        self.epoch = 0

    def step(self):
        self.epoch += 1
        t = min(1.0, self.epoch / self.epochs)
        setattr(self.target, self.name, self.start + t * (self.end - self.start))


def make_dataset(n=96):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(n, 8)).astype(np.float32)
    y = (x @ rng.normal(size=(8, 4))).argmax(1).astype(np.int32)
    return ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=True).batch(8)


dataset = make_dataset()
net = nn.SequentialCell(nn.Dense(8, 16), nn.ReLU(), nn.Dense(16, 4))
criterion = SmoothLoss(4, 0.3)
optimizer = nn.Momentum(net.trainable_params(), 0.05, 0.9)
train_one = nn.TrainOneStepCell(nn.WithLossCell(net, criterion), optimizer).set_train()
schedule = LinearSchedule(criterion, "smoothing", 0.3, 0.0, epochs=4)
per_epoch = dataset.get_dataset_size()
run = ck.loop(
    ROOT,
    dataset,
    epochs=4,
    train=train_one,
    stateful={"target": ck.attributes(criterion, "smoothing"), "schedule": ck.attributes(schedule, "epoch")},
    save=ck.SaveEvery(micro_steps=5),
    saving=ck.Saving(when_busy="wait"),
)
for x, y in run:
    number = run.step
    loss = train_one(x, y)
    if (number + 1) % per_epoch == 0:
        schedule.step()
        print(f"epoch {run.epoch}: loss {float(loss):.4f}, smoothing {criterion.smoothing:.2f}")
os._exit(0)
