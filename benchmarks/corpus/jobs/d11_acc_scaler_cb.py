# truth: differs
# class: callback
# head: regression_8_dataset

loss = nn.WithLossCell(net, loss_fn)
optimizer = nn.Adam(loss.trainable_params(), 0.01)
cell = ck.AccumulationTrainCell(loss, optimizer, 2, loss_scaler=ms.amp.DynamicLossScaler(2.0**10, 2, 5))


class WD(ms.Callback):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg

    def on_train_step_end(self, rc):
        self.cfg["wd"] = self.cfg["wd"] * 1.05
        for p in net.trainable_params():
            ops.assign(p, p.value() * (1 - self.cfg["wd"]))


ck.CheckpointCallback(ROOT, **SAVE).train(ms.Model(cell), 3, data, callbacks=[WD({"wd": 0.001})])
os._exit(0)
