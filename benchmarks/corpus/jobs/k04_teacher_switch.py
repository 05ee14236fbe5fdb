# truth: differs
# class: variable
# head: regression_8_train_step



small, big = nn.Dense(8, 1), nn.Dense(8, 1)
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches, small=small, big=big)
    point = manager.restore(state)
    teacher = small
    for i, (x, y) in enumerate(batches, point.batches_delivered):
        if i == 10:
            teacher = big
        train_step(x, y + ops.stop_gradient(teacher(x)))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
