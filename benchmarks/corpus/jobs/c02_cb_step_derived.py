# truth: exact
# class: callback
# head: regression_8_dataset

optimizer = nn.Momentum(net.trainable_params(), 0.05, 0.9)


class Cosine(ms.Callback):
    def on_train_step_begin(self, rc):
        p = rc.original_args()
        lr = 0.05 * 0.5 * (1 + math.cos(math.pi * p.cur_step_num / 24))
        ops.assign(p.optimizer.learning_rate, Tensor(lr, ms.float32))


model = ms.Model(net, loss_fn, optimizer)
ck.CheckpointCallback(ROOT, **SAVE).train(model, 3, data, callbacks=[Cosine()])
os._exit(0)
