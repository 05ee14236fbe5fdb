# truth: differs
# class: callback
# head: pynative_callback_dataset_ops
# Antithetic weight noise: each draw of NumPy's global generator is added in one step and taken away in the next, and waits in between.

ms.set_seed(3107)


class AntitheticNoise(Callback):
    def __init__(self, params, sigma=0.05):
        super().__init__()
        self.params, self.sigma = params, sigma
        self.waiting = []

    def on_train_step_end(self, run_context):
        if self.waiting:
            noise = [-n for n in self.waiting]
            self.waiting = []
        else:
            noise = [np.random.randn(*p.shape).astype(np.float32) * self.sigma for p in self.params]
            self.waiting = noise
        for p, n in zip(self.params, noise):
            ops.assign_add(p, ms.Tensor(n))


r = np.random.RandomState(7)
x = r.randn(32, 5).astype(np.float32)
y = x[:, :1] * x[:, 1:2]
dataset = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=True).batch(4)
net = nn.SequentialCell(nn.Dense(5, 7), nn.Tanh(), nn.Dense(7, 1))
opt = nn.Adam(net.trainable_params(), 0.01)
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(ms.Model(net, nn.MSELoss(), opt), 3, dataset, callbacks=[AntitheticNoise(net.trainable_params())])
os._exit(0)
