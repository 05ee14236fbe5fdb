# truth: differs
# class: outside
# head: regression_8_momentum



grad_fn = ms.value_and_grad(forward_fn, None, optimizer.parameters)


def global_step():
    n = int(os.environ.get("GSTEP", "0")) + 1
    os.environ["GSTEP"] = str(n)
    return n


batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches)
    point = manager.restore(state)
    for x, y in batches:
        loss, grads = grad_fn(x, y)
        n = global_step()
        optimizer(tuple(q / n for q in grads))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
