# truth: differs
# class: variable
# head: regression_8_train_step



def bump(name):
    d = globals()
    d[name] = d.get(name, 0) + 1
    return d[name]


batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches)
    point = manager.restore(state)
    for x, y in batches:
        train_step(x, y, 1 / bump("n_calls"))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
