# truth: differs
# class: callback
# head: pynative_callback_dataset_ops
# Gradual magnitude pruning: after steps 8 and 26 a callback chooses masks and multiplies the weights by them after each step; the masks are a dict that a start has not.

ms.set_seed(3548)


class Pruning(Callback):
    def __init__(self, net, shares):
        super().__init__()
        self.weights = [p for p in net.trainable_params() if p.ndim > 1]
        self.shares = shares
        self.masks = {}

    def choose(self, share):
        for p in self.weights:
            size = np.abs(p.asnumpy())
            self.masks[p.name] = ms.Tensor((size > np.quantile(size, share)).astype(np.float32))

    def on_train_step_end(self, run_context):
        step = run_context.original_args().cur_step_num
        if step in self.shares:
            self.choose(self.shares[step])
        for p in self.weights:
            if p.name in self.masks:
                ops.assign(p, p * self.masks[p.name])


r = np.random.RandomState(48)
x = r.randn(60, 8).astype(np.float32)
y = np.stack([x[:, 0] - x[:, 1], x[:, 2] * x[:, 3]], 1).astype(np.float32)
train = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=True).batch(6)
net = nn.SequentialCell(nn.Dense(8, 16), nn.ReLU(), nn.Dense(16, 2))
model = ms.Model(net, nn.MSELoss(), nn.Momentum(net.trainable_params(), 0.03, 0.9))

ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(model, 4, train, callbacks=[Pruning(net, {8: 0.4, 26: 0.7})])
os._exit(0)
