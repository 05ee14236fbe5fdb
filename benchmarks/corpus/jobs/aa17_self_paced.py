# truth: differs
# class: attribute
# head: classes_6_rows

net = nn.SequentialCell(nn.Dense(6, 12), nn.ReLU(), nn.Dense(12, 4))

opt = nn.Momentum(net.trainable_params(), 0.05, 0.9)


class HParams:
    def __init__(self, **kw):
        self.__dict__.update(kw)


hp = HParams(spl_lambda=1.2, growth=1.15, epochs=3)


def forward(x, y, lam):
    losses = ops.cross_entropy(net(x), y, reduction="none")
    v = (ops.stop_gradient(losses) < lam).astype(ms.float32)
    return (v * losses).mean()


grad_fn = ms.value_and_grad(forward, None, opt.parameters)


def on_epoch(hp):
    hp.spl_lambda *= hp.growth


batches = ck.data.resumable(loader, epochs=hp.epochs)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, opt], batches)
    point = manager.restore(state)
    for step, (x, y) in enumerate(batches, point.batches_delivered):
        if step and step % len(loader) == 0:
            on_epoch(hp)
        _, grads = grad_fn(x, y, hp.spl_lambda)
        opt(grads)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
