# truth: refused
# class: callback
# head: regression_8_dataset

optimizer = nn.Momentum(net.trainable_params(), 0.05, 0.9)


class Tracker:
    _by_name = {}

    @classmethod
    def get(cls, name):
        return cls._by_name.setdefault(name, collections.deque(maxlen=8))


class Clip(ms.Callback):
    def on_train_step_end(self, rc):
        for p in rc.original_args().optimizer.parameters:
            d = Tracker.get(p.name)
            a = p.asnumpy()
            d.append(float(np.abs(a).max()))
            lim = float(np.median(d))
            ops.assign(p, Tensor(np.clip(a, -lim, lim)))


model = ms.Model(net, loss_fn, optimizer)
ck.CheckpointCallback(ROOT, **SAVE).train(model, 3, data, callbacks=[Clip()])
os._exit(0)
