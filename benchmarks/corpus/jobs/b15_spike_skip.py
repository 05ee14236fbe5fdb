# truth: differs
# class: global
# head: regression_8_train_step



window = collections.deque(maxlen=20)


def is_spike(v):
    if len(window) < 12:
        return False
    return v > np.mean(window)


batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches)
    point = manager.restore(state)
    for x, y in batches:
        loss, grads = grad_fn(x, y)
        v = float(loss)
        if not is_spike(v):
            optimizer(grads)
        window.append(v)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
