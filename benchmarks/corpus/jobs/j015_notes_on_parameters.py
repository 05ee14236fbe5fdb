# truth: differs
# class: variable
# head: pynative_callback_dataset_ops
# Each Parameter object carries an attribute of its own, a slow norm, as people write p.ema in PyTorch; weights are pulled to that norm.

ms.set_seed(3115)


def norm_of(p):
    return float(np.sqrt((p.asnumpy().astype(np.float64) ** 2).sum()))


class NormInertia(Callback):
    def __init__(self, params):
        super().__init__()
        self.params = params

    def on_train_step_end(self, run_context):
        for p in self.params:
            if p.ndim < 2:
                continue
            now = norm_of(p)
            p.slow_norm = 0.9 * getattr(p, "slow_norm", now) + 0.1 * now
            ops.assign(p, p * float(p.slow_norm / (now + 1e-6)))


r = np.random.RandomState(15)
x = r.randn(32, 6).astype(np.float32)
y = (x @ r.randn(6, 1)).astype(np.float32)
net = nn.SequentialCell(nn.Dense(6, 8), nn.Tanh(), nn.Dense(8, 1))
cell = ck.AccumulationTrainCell(nn.WithLossCell(net, nn.MSELoss()), nn.Adam(net.trainable_params(), 0.05), 1)
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(
    ms.Model(cell),
    3,
    ds.NumpySlicesDataset((x, y), ["x", "y"]).batch(4),
    callbacks=[NormInertia(net.trainable_params())],
)
os._exit(0)
