# truth: exact
# class: variable
# head: regression_8_train_step



def lr_at(step):
    return 0.01 * 0.5 * (1 + math.cos(math.pi * step / 24))


batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches)
    point = manager.restore(state)
    for x, y in batches:
        step = int(optimizer.global_step.asnumpy()[0])
        ops.assign(optimizer.learning_rate, Tensor(lr_at(step), ms.float32))
        train_step(x, y)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
