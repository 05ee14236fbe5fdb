# truth: differs
# class: attribute
# head: pynative_callback_dataset_ops
# Progressive resizing: the network sees coarse inputs first; a callback makes them finer every seven steps.

ms.set_seed(131)


class Classifier(nn.Cell):
    def __init__(self):
        super().__init__()
        self.conv, self.head = nn.Conv2d(1, 6, 3), nn.Dense(6, 3)
        self.resolution = 4

    def construct(self, image):
        image = ops.adaptive_avg_pool2d(image, (self.resolution, self.resolution))
        return self.head(ops.relu(self.conv(image)).mean((2, 3)))


class Grow(Callback):
    def __init__(self, net, every, limit):
        super().__init__()
        self.net, self.every, self.limit = net, every, limit

    def on_train_step_end(self, run_context):
        step = run_context.original_args().cur_step_num
        if step % self.every == 0 and self.net.resolution < self.limit:
            self.net.resolution += 2


r = np.random.RandomState(31)
labels = r.randint(0, 3, 60).astype(np.int32)
images = r.randn(60, 1, 12, 12).astype(np.float32)
images[np.arange(60), 0, :, 3 * labels + 1] += 2.0
train = ds.NumpySlicesDataset((images, labels), ["image", "label"], shuffle=True).batch(6)
net = Classifier()
loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
model = ms.Model(net, loss, nn.Momentum(net.trainable_params(), 0.05, 0.9))

ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(model, 4, train, callbacks=[Grow(net, 7, 12)])
os._exit(0)
