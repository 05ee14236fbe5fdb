# truth: exact, may be named
# class: callback
# head: pynative_callback_dataset_ops
# One parameter in turn, by the number of the step, rests: its value is remembered when the step begins and put back when it ends.

ms.set_seed(3108)


class RestInTurn(Callback):
    def __init__(self, params):
        super().__init__()
        self.params = list(params)
        self.resting = None
        self.before = None

    def on_train_step_begin(self, run_context):
        self.resting = self.params[run_context.original_args().cur_step_num % len(self.params)]
        self.before = self.resting.asnumpy().copy()

    def on_train_step_end(self, run_context):
        ops.assign(self.resting, ms.Tensor(self.before))


rs = np.random.RandomState(8)
x = rs.randn(64, 4).astype(np.float32)
y = np.maximum(x[:, :1], x[:, 1:2]).astype(np.float32)
net = nn.SequentialCell(nn.Dense(4, 6), nn.ReLU(), nn.Dense(6, 1))
model = ms.Model(net, nn.MSELoss(), nn.Momentum(net.trainable_params(), 0.02, 0.9))
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(model, 3, ds.NumpySlicesDataset((x, y), ["x", "y"]).batch(8), callbacks=[RestInTurn(net.trainable_params())])
os._exit(0)
