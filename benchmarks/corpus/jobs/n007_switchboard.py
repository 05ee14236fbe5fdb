# truth: differs
# class: callback
# head: graph_callback_dataset_ops
# A referee switches one callback off and another one on when a loss has risen for the first time; a start has the switches of the beginning. GRAPH mode.

ms.set_seed(4407)


class Switchable(Callback):
    def __init__(self, active):
        super().__init__()
        self.active = active

    def on_train_step_end(self, run_context):
        if self.active:
            self.act(run_context.original_args())


class Shake(Switchable):
    """noise on the weights that depends on the number of the step only"""

    def act(self, cb):
        rng = np.random.default_rng([7, cb.cur_step_num])
        for p in cb.optimizer.parameters:
            ops.assign(p, p + ms.Tensor(rng.normal(0, 0.01, p.shape).astype(np.float32)))


class Shrink(Switchable):
    def act(self, cb):
        for p in cb.optimizer.parameters:
            ops.assign(p, p * 0.99)


class Referee(Callback):
    def __init__(self, first, second):
        super().__init__()
        self.first, self.second, self.last = first, second, float("inf")

    def on_train_step_end(self, run_context):
        loss = float(run_context.original_args().net_outputs.asnumpy())
        if loss > self.last and self.first.active:
            self.first.active, self.second.active = False, True
        self.last = loss


r = np.random.RandomState(7)
x = r.randn(48, 5).astype(np.float32)
y = (x[:, :1] * x[:, 1:2] + 0.5 * r.randn(48, 1)).astype(np.float32)
train = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=True).batch(6)
net = nn.SequentialCell(nn.Dense(5, 8), nn.ReLU(), nn.Dense(8, 1))
model = ms.Model(net, nn.MSELoss(), nn.Momentum(net.trainable_params(), 0.03, 0.9))
shake, shrink = Shake(True), Shrink(False)
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(model, 4, train, callbacks=[shake, shrink, Referee(shake, shrink)])
os._exit(0)
