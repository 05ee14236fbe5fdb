# truth: differs
# class: callback
# head: pynative_callback_dataset_ops
# A callback averages the weights into a dict of arrays, and at the end of each epoch the network continues from that average; the dict begins anew with a start.

ms.set_seed(3541)


class ShadowWeights(Callback):
    def __init__(self, net, decay):
        super().__init__()
        self.net, self.decay = net, decay
        self.shadow = {}

    def on_train_step_end(self, run_context):
        for p in self.net.trainable_params():
            value = p.asnumpy()
            old = self.shadow.get(p.name, value)
            self.shadow[p.name] = self.decay * old + (1 - self.decay) * value

    def on_train_epoch_end(self, run_context):
        for p in self.net.trainable_params():
            ops.assign(p, ms.Tensor(self.shadow[p.name].astype(np.float32)))


r = np.random.RandomState(41)
x = r.randn(64, 6).astype(np.float32)
y = (np.maximum(x[:, :1], 0) * x[:, 1:2] + 0.4 * r.randn(64, 1)).astype(np.float32)
train = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=True).batch(8)
net = nn.SequentialCell(nn.Dense(6, 12), nn.ReLU(), nn.Dense(12, 1))
model = ms.Model(net, nn.MSELoss(), nn.Momentum(net.trainable_params(), 0.05, 0.9))

ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(model, 4, train, callbacks=[ShadowWeights(net, decay=0.9)])
os._exit(0)
