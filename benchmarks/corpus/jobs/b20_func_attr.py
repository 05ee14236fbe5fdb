# truth: differs
# class: variable
# head: regression_8_train_step



def next_weight():
    next_weight.calls += 1
    return 1.0 / next_weight.calls


next_weight.calls = 0
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches)
    point = manager.restore(state)
    for x, y in batches:
        train_step(x, y, next_weight())
        manager.step(state)
    manager.save_final(state)
os._exit(0)
