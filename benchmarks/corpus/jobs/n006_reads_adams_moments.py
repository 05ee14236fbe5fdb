# truth: exact, may be named
# class: callback
# head: pynative_callback_dataset_ops
# A callback shrinks weights where Adam's second moment is large; the memory it looks at is the optimizer's own, what it collects itself is for a table.

ms.set_seed(4406)


class NoisyWeightDecay(Callback):
    def __init__(self, optimizer, strength, every):
        super().__init__()
        self.optimizer, self.strength, self.every = optimizer, strength, every
        self.table = {}

    def on_train_step_end(self, run_context):
        step = run_context.original_args().cur_step_num
        if step % self.every:
            return
        for p, v in zip(self.optimizer.parameters, self.optimizer.moment2):
            noise = np.sqrt(v.asnumpy())
            share = noise / (noise + noise.mean() + 1e-12)
            ops.assign(p, p * ms.Tensor((1 - self.strength * share).astype(np.float32)))
            self.table.setdefault(p.name, []).append(float(noise.mean()))

    def on_train_end(self, run_context):
        for name, values in self.table.items():
            print(f"{name:12} {values[0]:.2e} -> {values[-1]:.2e}, largest {max(values):.2e}")


r = np.random.RandomState(6)
x = r.randn(48, 4).astype(np.float32)
y = (np.abs(x[:, :1]) * x[:, 1:2]).astype(np.float32)
train = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=True).batch(6)
net = nn.SequentialCell(nn.Dense(4, 8), nn.Tanh(), nn.Dense(8, 1))
opt = nn.Adam(net.trainable_params(), 0.03)
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(ms.Model(net, nn.MSELoss(), opt), 3, train, callbacks=[NoisyWeightDecay(opt, 0.05, every=2)])
os._exit(0)
