# truth: differs
# class: variable
# head: regression_8_arrays

net = nn.SequentialCell(nn.Dense(8, 8), nn.ReLU(), nn.Dense(8, 1))
loss_fn = nn.MSELoss()


class Sched(nn.learning_rate_schedule.LearningRateSchedule):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def construct(self, global_step):
        self.calls = self.calls + 1
        return Tensor(0.05 / (1 + 0.2 * self.calls), ms.float32)


optimizer = nn.Momentum(net.trainable_params(), Sched(), 0.9)
data = ds.NumpySlicesDataset((X, Y), ["x", "y"], shuffle=False).batch(8)
model = ms.Model(net, loss_fn, optimizer)
ck.CheckpointCallback(ROOT, **SAVE).train(model, 3, data)
os._exit(0)
