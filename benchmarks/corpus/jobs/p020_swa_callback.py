# truth: exact
# class: callback
# head: pynative_callback_dataset_ops
# Stochastic weight averaging by a callback, from the second epoch on; the averages are a cell that is stored by name.

ms.set_seed(120)


class Averages(nn.Cell):
    def __init__(self, params):
        super().__init__()
        self.mean = ms.ParameterTuple(params).clone(prefix="swa", init="zeros")
        self.count = ms.Parameter(ms.Tensor(0.0, ms.float32), name="swa_count", requires_grad=False)

    def add(self, params):
        ops.assign_add(self.count, ms.Tensor(1.0))
        for m, p in zip(self.mean, params):
            ops.assign(m, m + (p - m) / self.count)


class SWA(Callback):
    def __init__(self, params, averages, start, every):
        super().__init__()
        self.params, self.averages, self.start, self.every = params, averages, start, every

    def on_train_step_end(self, run_context):
        step = run_context.original_args().cur_step_num
        if step >= self.start and step % self.every == 0:
            self.averages.add(self.params)


r = np.random.RandomState(20)
x = r.randn(60, 6).astype(np.float32)
y = (np.sin(2 * x[:, :1]) + x[:, 1:2]).astype(np.float32)
train = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=True).batch(6)
net = nn.SequentialCell(nn.Dense(6, 16), nn.Tanh(), nn.Dense(16, 1))
loss = nn.WithLossCell(net, nn.MSELoss())
optimizer = nn.Momentum(net.trainable_params(), 0.05, 0.9)
averages = Averages(net.trainable_params())
cell = ck.AccumulationTrainCell(loss, optimizer, 2)

ckpt = ck.CheckpointCallback(
    os.environ["ROOT"],
    save=ck.SaveEvery(micro_steps=5),
    saving=ck.Saving(when_busy="wait"),
    stateful={"averages": averages},
)
ckpt.train(ms.Model(cell), 4, train, callbacks=[SWA(net.trainable_params(), averages, 11, 4)])
os._exit(0)
