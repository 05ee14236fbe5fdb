# truth: differs
# class: iterator
# head: accumulating_6_graph
# A callback sets the rate by an `itertools.count` of its class.

class Decay(ms.train.Callback):
    steps = itertools.count(1)

    def on_train_step_end(self, run_context):
        cell = run_context.original_args().train_network
        cell.optimizer.learning_rate.set_data(ms.Tensor(0.02 / next(self.steps), ms.float32))


ck.CheckpointCallback(ROOT, **SAVE).train(ms.Model(accumulating(Loss(Net()))), EPOCHS, slices().batch(6), callbacks=[Decay()])
