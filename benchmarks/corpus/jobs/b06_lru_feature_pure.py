# truth: exact
# class: closure
# head: regression_8_train_step



@functools.lru_cache(maxsize=None)
def window(n):
    return Tensor(np.hanning(n).astype(np.float32))


batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches)
    point = manager.restore(state)
    for x, y in batches:
        train_step(x * window(8), y)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
