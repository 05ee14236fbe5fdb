# truth: differs
# class: attribute
# head: pynative_callback_dataset_ops
# After each evaluation of Model.fit the residual gate, a Parameter, is set by the ratio to the evaluation before, which is an attribute.

ms.set_seed(3111)


class Gated(nn.Cell):
    def __init__(self):
        super().__init__()
        self.inp = nn.Dense(5, 8)
        self.res = nn.Dense(8, 8)
        self.out = nn.Dense(8, 1)
        self.gate = ms.Parameter(ms.Tensor(1.0, ms.float32), name="gate", requires_grad=False)

    def construct(self, x):
        h = ops.tanh(self.inp(x))
        return self.out(h + self.gate * ops.tanh(self.res(h)))


class GateKeeper(Callback):
    def __init__(self, gate):
        super().__init__()
        self.gate = gate
        self.prev = None

    def on_train_epoch_end(self, run_context):
        now = run_context.original_args().get("eval_results", {}).get("mse")
        if now is None:
            return
        prev, self.prev = self.prev, now
        if prev:
            ops.assign(self.gate, ms.Tensor(0.3 + 0.7 * min(1.5, now / prev), ms.float32))


r = np.random.RandomState(11)
x = r.randn(48, 5).astype(np.float32)
y = (np.sin(2 * x[:, :1]) + x[:, 1:2]).astype(np.float32)
train = ds.NumpySlicesDataset((x[:32], y[:32]), ["x", "y"]).batch(8)
valid = ds.NumpySlicesDataset((x[32:], y[32:]), ["x", "y"], shuffle=False).batch(8)
net = Gated()
opt = nn.Momentum(net.trainable_params(), 0.05, 0.9)
model = ms.Model(net, nn.MSELoss(), opt, metrics={"mse"})
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.fit(model, 6, train, valid, callbacks=[GateKeeper(net.gate)])
os._exit(0)
