# truth: differs
# class: random
# head: saving_pynative_dataset_parameter

rng0 = np.random.default_rng(11)
X = rng0.normal(size=(80, 6)).astype(np.float32)
Y = (X[:, :1] * 0.7 - X[:, 1:2] ** 2).astype(np.float32)
train_data = ds.NumpySlicesDataset((X, Y), ["x", "y"], shuffle=True).batch(8)
net = nn.SequentialCell(nn.Dense(6, 12), nn.Tanh(), nn.Dense(12, 1))
opt = nn.Momentum(net.trainable_params(), 0.05, 0.9)
model = ms.Model(net, nn.MSELoss(), opt)


class Jitter:
    def __init__(self, scale, seed):
        self.scale, self.random = scale, np.random.RandomState(seed)

    def apply(self, param):
        noise = self.random.standard_normal(param.shape).astype(np.float32)
        ops.assign(param, param + Tensor(self.scale * noise))


class Perturb(ms.Callback):
    def __init__(self, params, every=3, **kw):
        super().__init__()
        self.params, self.every, self.jitter = params, every, Jitter(**kw)

    def on_train_step_end(self, run_context):
        if run_context.original_args().cur_step_num % self.every == 0:
            for p in self.params:
                self.jitter.apply(p)


ck.CheckpointCallback(ROOT, **SAVE).train(
    model, 3, train_data, callbacks=[Perturb(net.trainable_params(), scale=0.01, seed=5)]
)
os._exit(0)
