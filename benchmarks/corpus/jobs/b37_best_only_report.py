# truth: exact
# class: variable
# head: regression_8_train_step



best = float("inf")
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches)
    point = manager.restore(state)
    for x, y in batches:
        loss = float(train_step(x, y))
        if loss < best:
            best = loss
            print("new best", best, flush=True)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
