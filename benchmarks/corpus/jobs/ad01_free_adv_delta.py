# truth: differs
# class: variable
# head: classes_6_rows

net = nn.SequentialCell(nn.Dense(6, 12), nn.ReLU(), nn.Dense(12, 4))

opt = nn.Momentum(net.trainable_params(), 0.05, 0.9)


def forward(x, y, delta):
    return ops.cross_entropy(net(x + delta), y)


grad_fn = ms.value_and_grad(forward, 2, opt.parameters)
EPS = 0.2
delta = ops.zeros((8, 6), ms.float32)
batches = ck.data.resumable(loader, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    for x, y in batches:
        for _ in range(2):
            _, (dx, grads) = grad_fn(x, y, delta)
            opt(grads)
            delta = ops.clamp(delta + EPS * ops.sign(dx), -EPS, EPS)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
