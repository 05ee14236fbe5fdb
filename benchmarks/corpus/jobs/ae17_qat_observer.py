# truth: differs
# class: attribute
# head: regression_6_rows



class MinMaxObserver:
    def __init__(self, momentum=0.9, delay=6):
        self.lo = self.hi = None
        self.seen, self.momentum, self.delay = 0, momentum, delay

    def observe(self, x):
        lo, hi = float(x.min()), float(x.max())
        if self.lo is None:
            self.lo, self.hi = lo, hi
        else:
            self.lo = self.momentum * self.lo + (1 - self.momentum) * lo
            self.hi = self.momentum * self.hi + (1 - self.momentum) * hi
        self.seen += 1

    @property
    def ready(self):
        return self.seen > self.delay

    def fake_quant(self, x):
        scale = (self.hi - self.lo) / 15
        q = ops.round((x - self.lo) / scale).clip(0, 15) * scale + self.lo
        return x + ops.stop_gradient(q - x)


class QuantDense(nn.Dense):
    def __init__(self, *args):
        super().__init__(*args)
        self.observer = MinMaxObserver()

    def construct(self, x):
        out = super().construct(x)
        self.observer.observe(ops.stop_gradient(out))
        return self.observer.fake_quant(out) if self.observer.ready else out


net = nn.SequentialCell(QuantDense(6, 12), nn.Tanh(), QuantDense(12, 1))
loss_fn = nn.MSELoss()
opt = nn.Momentum(net.trainable_params(), 0.03, 0.9)
grad_fn = ms.value_and_grad(lambda x, y: loss_fn(net(x), y), None, opt.parameters)

batches = ck.data.resumable(loader, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    for x, y in batches:
        loss, grads = grad_fn(x, y)
        opt(grads)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
