# truth: differs
# class: variable
# head: regression_8_train_step



hard = []
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches)
    point = manager.restore(state)
    for i, (x, y) in enumerate(batches, point.batches_delivered):
        loss = float(train_step(x, y))
        heapq.heappush(hard, (-loss, i % 8))
        if i % 5 == 4:
            _, k = heapq.heappop(hard)
            train_step(*rows[k])
        manager.step(state)
    manager.save_final(state)
os._exit(0)
