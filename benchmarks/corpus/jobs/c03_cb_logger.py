# truth: exact
# class: callback
# head: regression_8_dataset

optimizer = nn.Momentum(net.trainable_params(), 0.05, 0.9)


class Log(ms.Callback):
    def __init__(self):
        super().__init__()
        self.losses = []

    def on_train_step_end(self, rc):
        p = rc.original_args()
        self.losses.append(float(p.net_outputs.asnumpy()))
        if p.cur_step_num % 4 == 0:
            print("mean", np.mean(self.losses[-4:]), flush=True)


model = ms.Model(net, loss_fn, optimizer)
ck.CheckpointCallback(ROOT, **SAVE).train(model, 3, data, callbacks=[Log(), ms.LossMonitor(8)])
os._exit(0)
