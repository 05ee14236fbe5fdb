# truth: differs
# class: variable
# head: regression_8_train_step



masks = {}


def make_masks(ratio):
    for p in net.trainable_params():
        w = p.asnumpy()
        masks[p.name] = Tensor((np.abs(w) > np.quantile(np.abs(w), ratio)).astype(np.float32))


batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches)
    point = manager.restore(state)
    for i, (x, y) in enumerate(batches, point.batches_delivered):
        if i == 8:
            make_masks(0.3)
        train_step(x, y)
        for p in net.trainable_params():
            if p.name in masks:
                ops.assign(p, p.value() * masks[p.name])
        manager.step(state)
    manager.save_final(state)
os._exit(0)
