# truth: exact
# class: other
# head: accumulating_6_graph
# A schedule counts its own calls, in a parameter.

class Counting(nn.learning_rate_schedule.LearningRateSchedule):
    def __init__(self):
        super().__init__()
        self.calls = ms.Parameter(ms.Tensor(0.0), name="schedule.calls", requires_grad=False)

    def construct(self, step):
        calls = self.calls + 1.0
        return ops.depend(0.05 / calls, ops.assign(self.calls, calls))


loss = Loss(Net())
cell = ck.AccumulationTrainCell(loss, nn.SGD(loss.trainable_params(), Counting()), 3)
ck.CheckpointCallback(ROOT, **SAVE).train(ms.Model(cell), EPOCHS, slices().batch(6))
