# truth: differs
# class: callback
# head: regression_8_dataset

optimizer = nn.Momentum(net.trainable_params(), 0.05, 0.9)


class Plateau(ms.Callback):
    def __init__(self):
        super().__init__()
        self.best, self.bad = 1e9, 0

    def on_train_step_end(self, rc):
        p = rc.original_args()
        loss = float(p.net_outputs.asnumpy())
        if loss < self.best:
            self.best, self.bad = loss, 0
        else:
            self.bad += 1
            if self.bad >= 2:
                ops.assign(p.optimizer.learning_rate, p.optimizer.learning_rate * 0.7)
                self.bad = 0


model = ms.Model(net, loss_fn, optimizer)
ck.CheckpointCallback(ROOT, **SAVE).train(model, 3, data, callbacks=[Plateau()])
os._exit(0)
