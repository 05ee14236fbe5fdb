# truth: refused
# class: callback
# head: regression_8_dataset

optimizer = nn.Momentum(net.trainable_params(), 0.05, 0.9)
lg = logging.getLogger("train")
lg.propagate = False
lg.setLevel(logging.INFO)


class CountFilter(logging.Filter):
    n = 0

    def filter(self, record):
        self.n += 1
        return self.n % 4 == 0


cf = CountFilter()
lg.addFilter(cf)


class P(ms.Callback):
    def on_train_step_end(self, rc):
        p = rc.original_args()
        lg.info("loss %s", p.net_outputs)
        ops.assign(p.optimizer.learning_rate, Tensor(0.05 / (1 + cf.n), ms.float32))


model = ms.Model(net, loss_fn, optimizer)
ck.CheckpointCallback(ROOT, **SAVE).train(model, 3, data, callbacks=[P()])
os._exit(0)
