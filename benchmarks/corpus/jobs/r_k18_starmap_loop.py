# truth: differs
# class: attribute
# head: regression_8_momentum



grad_fn = ms.value_and_grad(forward_fn, None, optimizer.parameters)
n = [0]


def body(x, y):
    n[0] += 1
    loss, grads = grad_fn(x, y)
    optimizer(tuple(q / n[0] for q in grads))
    manager.step(state)
    return float(loss.asnumpy())


batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches)
    manager.restore(state)
    best = min(itertools.starmap(body, batches))
    manager.save_final(state)
os._exit(0)
