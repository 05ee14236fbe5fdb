# truth: differs
# class: variable
# head: regression_8_momentum



grad_fn = ms.value_and_grad(forward_fn, None, optimizer.parameters)
weights = {k: random.SystemRandom().random() for k in range(3)}
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches)
    point = manager.restore(state)
    for x, y in batches:
        w = weights[batches.epoch]
        loss, grads = grad_fn(x, y)
        optimizer(tuple(q * w for q in grads))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
