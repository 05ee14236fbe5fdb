# truth: exact
# class: attribute
# head: accumulating_6_pynative
# A callback sets a norm to evaluation at the fifth micro-step; checkpoints hold that of cells.

class FreezeNorm(ms.train.Callback):
    def __init__(self, norm):
        super().__init__()
        self.norm = norm

    def on_train_step_end(self, run_context):
        if run_context.original_args().cur_step_num == 5:
            self.norm.set_train(False)


net = nn.SequentialCell(nn.Dense(8, 8), nn.BatchNorm1d(8), nn.Dense(8, 3))
ck.CheckpointCallback(ROOT, **SAVE).train(ms.Model(accumulating(Loss(net))), EPOCHS, slices().batch(6), callbacks=[FreezeNorm(net[1])])
