# truth: exact
# class: callback
# head: graph_callback_dataset_ops
# Label smoothing falls from epoch to epoch; a callback writes it into the loss before each epoch.

ms.set_seed(102)


class SmoothedLoss(nn.Cell):
    def __init__(self, backbone, classes):
        super().__init__()
        self.backbone = backbone
        self.classes = classes
        self.smoothing = ms.Parameter(ms.Tensor(0.3, ms.float32), name="smoothing", requires_grad=False)
        self.ce = nn.SoftmaxCrossEntropyWithLogits(sparse=False, reduction="mean")

    def construct(self, x, onehot):
        target = onehot * (1 - self.smoothing) + self.smoothing / self.classes
        return self.ce(self.backbone(x), target)


class SmoothingSchedule(Callback):
    def __init__(self, loss, values):
        super().__init__()
        self.loss, self.values = loss, values

    def on_train_epoch_begin(self, run_context):
        epoch = run_context.original_args().cur_epoch_num
        self.loss.smoothing.set_data(ms.Tensor(self.values[epoch - 1], ms.float32))


r = np.random.RandomState(2)
labels = r.randint(0, 5, 60)
x = (r.randn(60, 10) + np.eye(5).repeat(2, 1)[labels]).astype(np.float32)
train = ds.NumpySlicesDataset((x, np.eye(5, dtype=np.float32)[labels]), ["x", "y"], shuffle=True).batch(6)

net = nn.SequentialCell(nn.Dense(10, 20), nn.ReLU(), nn.Dense(20, 5))
loss = SmoothedLoss(net, 5)
optimizer = nn.Adam(net.trainable_params(), 5e-3)
step = nn.TrainOneStepCell(loss, optimizer)

ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(ms.Model(step), 4, train, callbacks=[SmoothingSchedule(loss, [0.3, 0.2, 0.1, 0.0])])
os._exit(0)
