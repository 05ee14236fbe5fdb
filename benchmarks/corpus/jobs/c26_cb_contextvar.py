# truth: refused
# class: callback
# head: regression_8_dataset

optimizer = nn.Momentum(net.trainable_params(), 0.05, 0.9)
phase = contextvars.ContextVar("phase")
phase.set(0)


class P(ms.Callback):
    def on_train_step_end(self, rc):
        p = rc.original_args()
        phase.set(phase.get() + 1)
        if phase.get() % 7 == 0:
            ops.assign(p.optimizer.learning_rate, p.optimizer.learning_rate * 0.5)


model = ms.Model(net, loss_fn, optimizer)
ck.CheckpointCallback(ROOT, **SAVE).train(model, 3, data, callbacks=[P()])
os._exit(0)
