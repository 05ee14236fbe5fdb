# truth: differs
# class: attribute
# head: regression_8_train_step



def lr_controller(lr):
    best = float("inf")
    while True:
        loss = yield lr
        if loss > best:
            lr *= 0.8
        best = min(best, loss)


ctrl = lr_controller(0.02)
lr = next(ctrl)
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches)
    point = manager.restore(state)
    for x, y in batches:
        ops.assign(optimizer.learning_rate, Tensor(lr, ms.float32))
        loss = train_step(x, y)
        lr = ctrl.send(float(loss))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
