# truth: differs
# class: global
# head: regression_8_rows
# the best weights so far and the number of rollbacks are in a dict; weights are pulled back to them now and then

net = nn.SequentialCell(nn.Dense(8, 8), nn.ReLU(), nn.Dense(8, 1))
loss_fn = nn.MSELoss()
optimizer = nn.Momentum(net.trainable_params(), 0.05, 0.9)
grad_fn = ms.value_and_grad(lambda x, y, w: loss_fn(net(x), y) * w, None, optimizer.parameters)


def train_step(x, y, w=1.0):
    loss, grads = grad_fn(x, y, w)
    optimizer(grads)
    return loss


best = {"loss": float("inf"), "weights": None, "rollbacks": 0}


def remember_best(params, loss):
    if loss < best["loss"]:
        best.update(loss=loss, weights=[p.asnumpy().copy() for p in params])


def soft_rollback(params):
    pull = 0.5 / (1 + best["rollbacks"])
    for p, w in zip(params, best["weights"]):
        ops.assign(p, (1 - pull) * p + pull * Tensor(w))
    best["rollbacks"] += 1


def train(epochs=3, every=4):
    params = net.trainable_params()
    batches = ck.data.resumable(rows, epochs=epochs)
    with ck.CheckpointManager(ROOT, **SAVE) as manager:
        state = ck.StateManager([net, optimizer], batches)
        point = manager.restore(state)
        for step, (x, y) in enumerate(batches, point.batches_delivered + 1):
            remember_best(params, float(loss_fn(net(x), y).asnumpy()))
            train_step(x, y)
            if step % every == 0:
                soft_rollback(params)
            manager.step(state)
        manager.save_final(state)


train()
os._exit(0)
