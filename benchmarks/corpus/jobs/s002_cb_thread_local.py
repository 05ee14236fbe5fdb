# truth: differs
# class: global
# head: accumulating_6_graph
# A callback counts its steps in a `threading.local` of the module.

local = threading.local()
local.steps = 0


class Decay(ms.train.Callback):
    def on_train_step_end(self, run_context):
        local.steps += 1
        cell = run_context.original_args().train_network
        cell.optimizer.learning_rate.set_data(ms.Tensor(0.05 / local.steps, ms.float32))


ck.CheckpointCallback(ROOT, **SAVE).train(ms.Model(accumulating(Loss(Net()))), EPOCHS, slices().batch(6), callbacks=[Decay()])
