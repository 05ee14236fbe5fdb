# truth: exact
# class: callback
# head: accumulating_6_pynative
# A callback lowers the rate of ckptkit's dropout at the begin of each epoch, by its number.

class LessDropout(ms.train.Callback):
    def __init__(self, dropout):
        super().__init__()
        self.dropout = dropout

    def on_train_epoch_begin(self, run_context):
        self.dropout.p = 0.5 / run_context.original_args().cur_epoch_num


dropout = ck.nn.Dropout(p=0.5, seed=1)
ck.CheckpointCallback(ROOT, **SAVE).train(ms.Model(accumulating(Loss(nn.SequentialCell(nn.Dense(8, 8), dropout, nn.Dense(8, 3))))), EPOCHS, slices().batch(6), callbacks=[LessDropout(dropout)])
