# truth: differs
# class: random
# head: accumulating_6_pynative
# A callback sets weights to zero by `ops.bernoulli`.

class Prune(ms.train.Callback):
    def __init__(self, weight):
        super().__init__()
        self.weight = weight

    def on_train_step_end(self, run_context):
        ops.assign(self.weight, self.weight * ops.bernoulli(ops.ones_like(self.weight), 0.9))


net = Net()
ck.CheckpointCallback(ROOT, **SAVE).train(ms.Model(accumulating(Loss(net))), EPOCHS, slices().batch(6), callbacks=[Prune(net.out.weight)])
