# truth: exact
# class: variable
# head: regression_8_train_step



target = nn.SequentialCell(nn.Dense(8, 8), nn.ReLU(), nn.Dense(8, 1))


def sync():
    for t, p in zip(target.get_parameters(), net.get_parameters()):
        ops.assign(t, p.value())


sync()
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches, target=target)
    point = manager.restore(state)
    for i, (x, y) in enumerate(batches, point.batches_delivered + 1):
        td = y + 0.9 * target(x)
        train_step(x, td)
        if i % 4 == 0:
            sync()
        manager.step(state)
    manager.save_final(state)
os._exit(0)
