# truth: differs
# class: callback
# head: regression_6_graph_dataset

net = nn.SequentialCell(nn.Dense(6, 12), nn.Tanh(), nn.Dense(12, 1))
opt = nn.Momentum(net.trainable_params(), 0.05, 0.9)
model = ms.Model(net, nn.MSELoss(), opt)


class Clock:
    def __init__(self):
        self.ticks = 0


class Warmup:
    def __init__(self, clock):
        self.clock = clock

    def rate(self):
        self.clock.ticks += 1
        return 0.05 * min(1.0, self.clock.ticks / 20)


class RateCallback(ms.Callback):
    def __init__(self, strategy):
        super().__init__()
        self.strategy = strategy

    def on_train_step_begin(self, run_context):
        ops.assign(run_context.original_args().optimizer.learning_rate, Tensor(self.strategy.rate(), ms.float32))


ck.CheckpointCallback(ROOT, **SAVE).train(model, 3, train_data, callbacks=[RateCallback(Warmup(Clock()))])
os._exit(0)
