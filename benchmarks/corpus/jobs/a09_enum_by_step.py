# truth: exact
# class: attribute
# head: regression_8_train_step



class Phase(enum.Enum):
    WARM = 0.1
    MAIN = 1.0
    COOL = 0.3


def phase_of(i):
    return Phase.WARM if i < 4 else Phase.MAIN if i < 14 else Phase.COOL


batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches)
    point = manager.restore(state)
    for i, (x, y) in enumerate(batches, point.batches_delivered):
        train_step(x, y, phase_of(i).value)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
