# truth: differs
# class: variable
# head: regression_8_momentum



grad_fn = ms.value_and_grad(forward_fn, None, optimizer.parameters)


def step(carry, batch):
    x, y = batch
    loss, grads = grad_fn(x, y)
    carry = 0.9 * carry + 0.1 * float(loss.asnumpy())
    optimizer(tuple(q * carry for q in grads))
    manager.step(state)
    return carry


batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches)
    manager.restore(state)
    final = functools.reduce(step, batches, 1.0)
    manager.save_final(state)
os._exit(0)
