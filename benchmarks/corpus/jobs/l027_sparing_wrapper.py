# truth: differs
# class: callback
# head: pynative_callback_dataset_ops
# A callback wraps another one and passes on every seventh step only, since the inner one is expensive; the count is the wrapper's.

ms.set_seed(4127)


class Sparing(Callback):
    def __init__(self, inner, every):
        super().__init__()
        self.inner, self.every, self.skipped = inner, every, 0

    def on_train_begin(self, run_context):
        self.inner.on_train_begin(run_context)

    def on_train_step_end(self, run_context):
        self.skipped += 1
        if self.skipped == self.every:
            self.skipped = 0
            self.inner.on_train_step_end(run_context)

    def on_train_end(self, run_context):
        self.inner.on_train_end(run_context)


class Orthogonalize(Callback):
    """one step of Newton and Schulz towards orthogonal rows"""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def on_train_step_end(self, run_context):
        w = self.layer.weight
        ops.assign(w, 1.2 * w - 0.2 * ops.matmul(ops.matmul(w, w.T), w))


r = np.random.RandomState(27)
x = r.randn(48, 8).astype(np.float32)
y = np.tanh(x[:, :2] - x[:, 2:4]).astype(np.float32)
train = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=False).batch(6)
net = nn.SequentialCell(nn.Dense(8, 4), nn.Tanh(), nn.Dense(4, 2))
model = ms.Model(net, nn.MSELoss(), nn.Adam(net.trainable_params(), 0.01))
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(model, 3, train, callbacks=[Sparing(Orthogonalize(net[0]), every=7)])
os._exit(0)
