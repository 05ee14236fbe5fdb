# truth: exact
# class: callback
# head: pynative_callback_dataset_ops
# The rate is doubled and halved again at numbered steps, in the optimizer's own parameter; a flag about it is printed and never asked.

ms.set_seed(3106)

r = np.random.RandomState(6)
x = r.randn(32, 4).astype(np.float32)
y = np.tanh(x @ r.randn(4, 2)).astype(np.float32)

net = nn.SequentialCell(nn.Dense(4, 8), nn.Sigmoid(), nn.Dense(8, 2))
opt = nn.Momentum(net.trainable_params(), learning_rate=0.04, momentum=0.8)


class Pulse(Callback):
    UP, DOWN, PERIOD = 2, 5, 7

    def __init__(self, rate):
        super().__init__()
        self.rate = rate
        self.high = False

    def scale(self, by):
        ops.assign(self.rate, self.rate * by)
        self.high = by > 1

    def on_train_step_end(self, run_context):
        match run_context.original_args().cur_step_num % self.PERIOD:
            case self.UP:
                self.scale(2.0)
            case self.DOWN:
                self.scale(0.5)

    def on_train_epoch_end(self, run_context):
        print("pulse is", "high" if self.high else "low")


ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(
    ms.Model(net, nn.MSELoss(), opt),
    3,
    ds.NumpySlicesDataset((x, y), ["x", "y"]).batch(4),
    callbacks=[Pulse(opt.learning_rate)],
)
os._exit(0)
