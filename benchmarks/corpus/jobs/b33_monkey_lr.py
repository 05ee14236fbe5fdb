# truth: differs
# class: attribute
# head: regression_8_train_step



class State:
    pass


st = State()
vars(st).update(step=0)


def warm():
    vars(st)["step"] += 1
    return min(1.0, vars(st)["step"] / 20)


batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches)
    point = manager.restore(state)
    for x, y in batches:
        train_step(x, y, warm())
        manager.step(state)
    manager.save_final(state)
os._exit(0)
