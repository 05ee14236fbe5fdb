# truth: differs
# class: callback
# head: regression_6_graph_dataset


net = nn.SequentialCell(nn.Dense(6, 12), nn.Tanh(), nn.Dense(12, 1))


class Mixed(nn.Cell):
    def __init__(self, network):
        super().__init__()
        self.network = network
        self.alpha = Parameter(Tensor(0.9, ms.float32), name="alpha", requires_grad=False)

    def construct(self, x, y):
        p = self.network(x)
        return self.alpha * ((p - y) ** 2).mean() + (1 - self.alpha) * ops.abs(p - y).mean()


mixed = Mixed(net)
opt = nn.Adam(net.trainable_params(), 0.01)
model = ms.Model(nn.TrainOneStepCell(mixed, opt))


class AlphaTuner(ms.Callback):
    def __init__(self):
        super().__init__()
        self.best, self.bad = None, 0

    def on_train_step_end(self, run_context):
        loss = float(run_context.original_args().net_outputs)
        if self.best is None or loss < self.best:
            self.best, self.bad = loss, 0
        else:
            self.bad += 1
        if self.bad >= 2:
            ops.assign(mixed.alpha, mixed.alpha * 0.8)
            self.bad = 0


ck.CheckpointCallback(ROOT, **SAVE).train(model, 3, train_data, callbacks=[AlphaTuner()])
os._exit(0)
