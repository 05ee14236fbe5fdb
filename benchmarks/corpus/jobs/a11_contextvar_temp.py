# truth: differs
# class: global
# head: regression_8_train_step



temperature = contextvars.ContextVar("temperature", default=1.0)


def scaled_step(x, y):
    return train_step(x, y, temperature.get())


batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches)
    point = manager.restore(state)
    for x, y in batches:
        scaled_step(x, y)
        temperature.set(max(0.1, temperature.get() * 0.9))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
