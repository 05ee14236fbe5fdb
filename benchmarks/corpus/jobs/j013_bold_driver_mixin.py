# truth: exact
# class: callback
# head: pynative_callback_dataset_ops
# The bold driver: up a little when the loss falls, down when it rises. A mixin gives state_dict by vars(), and the callback is stateful=.

ms.set_seed(3113)


class Persistent:
    """every public number of the instance is state"""

    def state_dict(self):
        return {k: v for k, v in vars(self).items() if isinstance(v, (int, float)) and not k.startswith("_")}

    def load_state_dict(self, state):
        for k, v in state.items():
            setattr(self, k, v)


class BoldDriver(Persistent, Callback):
    def __init__(self, opt, rate):
        Callback.__init__(self)
        self._opt = opt
        self.rate = float(rate)
        self.before = 1e30
        self.reversals = 0

    def on_train_step_end(self, run_context):
        loss = float(run_context.original_args().net_outputs.asnumpy())
        if loss < self.before:
            self.rate *= 1.06
        else:
            self.rate *= 0.7
            self.reversals += 1
        self.before = loss
        ops.assign(self._opt.learning_rate, ms.Tensor(self.rate, ms.float32))


r = np.random.RandomState(13)
x = r.randn(32, 6).astype(np.float32)
y = (x**2).mean(1, keepdims=True).astype(np.float32)
net = nn.SequentialCell(nn.Dense(6, 10), nn.Tanh(), nn.Dense(10, 1))
opt = nn.Momentum(net.trainable_params(), 0.02, 0.9)
driver = BoldDriver(opt, 0.02)
ckpt = ck.CheckpointCallback(
    os.environ["ROOT"],
    save=ck.SaveEvery(micro_steps=5),
    saving=ck.Saving(when_busy="wait"),
    stateful={"driver": driver},
)
ckpt.train(ms.Model(net, nn.MSELoss(), opt), 3, ds.NumpySlicesDataset((x, y), ["x", "y"]).batch(4), callbacks=[driver])
os._exit(0)
