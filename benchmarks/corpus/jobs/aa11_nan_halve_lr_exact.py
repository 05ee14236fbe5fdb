# truth: exact
# class: attribute
# head: regression_6_rows

net = nn.SequentialCell(nn.Dense(6, 12), nn.Tanh(), nn.Dense(12, 1))

loss_fn = nn.MSELoss()
opt = nn.Momentum(net.trainable_params(), 0.1, 0.9)
grad_fn = ms.value_and_grad(lambda x, y: loss_fn(net(x), y), None, opt.parameters)


class Diverged(Exception):
    pass


def attempt(x, y):
    loss, grads = grad_fn(x, y)
    if not np.isfinite(float(loss)) or float(loss) > 2.0:
        raise Diverged(float(loss))
    opt(grads)
    return loss


batches = ck.data.resumable(loader, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    for x, y in batches:
        try:
            attempt(x, y)
        except Diverged as problem:
            print("skipping", problem)
            ops.assign(opt.learning_rate, opt.learning_rate * 0.5)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
