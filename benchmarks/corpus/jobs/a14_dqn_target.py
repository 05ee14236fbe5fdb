# truth: exact, may be named
# class: variable
# head: regression_8_train_step



target = nn.SequentialCell(nn.Dense(8, 8), nn.ReLU(), nn.Dense(8, 1))
ms.load_param_into_net(
    target, {k: v for k, v in zip([p.name for p in target.get_parameters()], net.get_parameters())}, strict_load=False
)


def sync():
    for t, p in zip(target.get_parameters(), net.get_parameters()):
        ops.assign(t, p.value())


sync()
n_updates = 0
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches)
    point = manager.restore(state)
    for x, y in batches:
        td = y + 0.9 * target(x)
        train_step(x, td)
        n_updates += 1
        if n_updates % 4 == 0:
            sync()
        manager.step(state)
    manager.save_final(state)
os._exit(0)
