# truth: differs
# class: callback
# head: regression_8_dataset

optimizer = nn.Momentum(net.trainable_params(), 0.05, 0.9)


class HistoryMixin:
    history: typing.ClassVar[list] = []

    def record(self, v):
        type(self).history.append(v)

    def trend(self):
        h = self.history
        return 0.0 if len(h) < 8 else h[-1] - h[-8]


class TrendLR(HistoryMixin, ms.Callback):
    def on_train_step_end(self, rc):
        p = rc.original_args()
        self.record(float(p.net_outputs.asnumpy()))
        if self.trend() > 0:
            ops.assign(p.optimizer.learning_rate, p.optimizer.learning_rate * 0.8)


model = ms.Model(net, loss_fn, optimizer)
ck.CheckpointCallback(ROOT, **SAVE).train(model, 3, data, callbacks=[TrendLR()])
os._exit(0)
