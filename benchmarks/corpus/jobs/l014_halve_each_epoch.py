# truth: exact
# class: callback
# head: pynative_callback_dataset_ops
# At the beginning of training the rate is set, at the beginning of each epoch but the first it is multiplied: the memory is the rate itself.

ms.set_seed(4114)


class BadLoss(ArithmeticError):
    pass


def check(loss):
    if not np.isfinite(loss) or loss > 1.0:
        raise BadLoss(f"{loss:.3f}")


class Halve(Callback):
    def __init__(self, start=0.06, gamma=0.6):
        super().__init__()
        self.start, self.gamma, self.complaints = start, gamma, []

    def on_train_begin(self, run_context):
        rate = run_context.original_args().optimizer.learning_rate
        ops.assign(rate, ms.Tensor(self.start, ms.float32))

    def on_train_epoch_begin(self, run_context):
        cb = run_context.original_args()
        if cb.cur_epoch_num > 1:
            ops.assign(cb.optimizer.learning_rate, cb.optimizer.learning_rate * self.gamma)

    def on_train_step_end(self, run_context):
        try:
            check(float(run_context.original_args().net_outputs.asnumpy()))
        except BadLoss as why:
            self.complaints.append(str(why))

    def on_train_end(self, run_context):
        print(len(self.complaints), "high losses:", ", ".join(self.complaints))


r = np.random.RandomState(14)
x = r.randn(48, 5).astype(np.float32)
y = np.maximum(x[:, :1], x[:, 1:2]).astype(np.float32)
train = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=False).batch(6)
net = nn.SequentialCell(nn.Dense(5, 8), nn.Tanh(), nn.Dense(8, 1))
model = ms.Model(net, nn.MSELoss(), nn.Momentum(net.trainable_params(), 0.01, 0.7))
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(model, 3, train, callbacks=[Halve()])
os._exit(0)
