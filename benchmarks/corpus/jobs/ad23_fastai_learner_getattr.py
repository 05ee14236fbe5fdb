# truth: differs
# class: attribute
# head: regression_6_grad_fn



class Cb:
    order = 0
    learn = None

    def __getattr__(self, name):
        if name.startswith("_") or self.learn is None:
            raise AttributeError(name)
        return getattr(self.learn, name)


class ParamScheduler(Cb):
    order = 1

    def before_batch(self):
        self.learn.hypers["lr"] = 0.03 * (1 - self.learn.seen / 400)


class Counter(Cb):
    order = 2

    def after_batch(self):
        self.learn.seen += len(self.xb)


class Learner:
    def __init__(self, cbs):
        self.cbs = sorted(cbs, key=lambda c: c.order)
        self.hypers, self.seen = {"lr": 0.03}, 0
        for c in self.cbs:
            c.learn = self

    def __call__(self, event):
        for c in self.cbs:
            method = type(c).__dict__.get(event)
            if method:
                method(c)

    def one_batch(self, xb, yb):
        self.xb, self.yb = xb, yb
        self("before_batch")
        self.loss, grads = grad_fn(xb, yb)
        for p, g in zip(opt.parameters, grads):
            ops.assign(p, p - self.hypers["lr"] * g)
        self("after_batch")

    def fit(self, epochs):
        batches = ck.data.resumable(loader, epochs=epochs)
        with ck.CheckpointManager(ROOT, **SAVE) as manager:
            state = ck.StateManager([net], batches)
            manager.restore(state)
            for xb, yb in batches:
                self.one_batch(xb, yb)
                manager.step(state)
            manager.save_final(state)


Learner([ParamScheduler(), Counter()]).fit(3)
os._exit(0)
