# truth: differs
# class: global
# head: regression_8_train_step



center = ops.zeros((1,), ms.float32)


def update_center(out):
    global center
    center = center * 0.9 + out.mean(axis=0) * 0.1


batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches)
    point = manager.restore(state)
    for x, y in batches:
        out = ops.stop_gradient(net(x))
        train_step(x, y + out - center)
        update_center(out)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
