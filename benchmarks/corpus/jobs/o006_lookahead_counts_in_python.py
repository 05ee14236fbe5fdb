# truth: differs
# class: attribute
# head: pynative_dataset_ops
# Lookahead: the slow weights are Parameters of the train cell and stored, but the number of fast steps since the last synchronization is an int of Python.

ms.set_seed(3506)


class LookaheadStep(nn.TrainOneStepCell):
    def __init__(self, network, optimizer, k, alpha):
        super().__init__(network, optimizer)
        self.k, self.alpha = k, alpha
        self.slow = optimizer.parameters.clone(prefix="slow")
        self.fast_steps = 0

    def synchronize(self):
        for slow, fast in zip(self.slow, self.weights):
            ops.assign(slow, slow + self.alpha * (fast - slow))
            ops.assign(fast, slow)

    def construct(self, x, y):
        loss = self.network(x, y)
        grads = self.grad_no_sens(self.network, self.weights)(x, y)
        self.optimizer(grads)
        self.fast_steps += 1
        if self.fast_steps == self.k:
            self.synchronize()
            self.fast_steps = 0
        return loss


r = np.random.RandomState(6)
x = r.randn(54, 5).astype(np.float32)
y = (np.maximum(x[:, :1], x[:, 1:2]) - x[:, 4:]).astype(np.float32)
train = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=True).batch(6)
net = nn.SequentialCell(nn.Dense(5, 10), nn.ReLU(), nn.Dense(10, 1))
step = LookaheadStep(nn.WithLossCell(net, nn.MSELoss()), nn.Adam(net.trainable_params(), 0.03), k=4, alpha=0.5)

ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(ms.Model(step), 4, train)
os._exit(0)
