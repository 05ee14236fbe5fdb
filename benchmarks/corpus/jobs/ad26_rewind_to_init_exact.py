# truth: exact
# class: variable
# head: regression_6_grad_fn


initial = {p.name: p.asnumpy().copy() for p in net.trainable_params()}


def prune_and_rewind():
    for p in net.trainable_params():
        w = np.abs(p.asnumpy())
        ops.assign(p, Tensor(np.where(w > np.quantile(w, 0.3), initial[p.name], 0).astype(np.float32)))


batches = ck.data.resumable(loader, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, opt], batches)
    point = manager.restore(state)
    for step, (x, y) in enumerate(batches, point.batches_delivered):
        loss, grads = grad_fn(x, y)
        opt(grads)
        if step == 20:
            prune_and_rewind()
        manager.step(state)
    manager.save_final(state)
os._exit(0)
