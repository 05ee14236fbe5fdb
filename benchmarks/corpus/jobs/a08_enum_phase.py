# truth: differs
# class: attribute
# head: regression_8_train_step



class Phase(enum.Enum):
    WARM = 0.1
    MAIN = 1.0
    COOL = 0.3


class Machine:
    def __init__(self):
        self.phase, self.count = Phase.WARM, 0

    def advance(self):
        self.count += 1
        if self.phase is Phase.WARM and self.count >= 4:
            self.phase, self.count = Phase.MAIN, 0
        elif self.phase is Phase.MAIN and self.count >= 10:
            self.phase, self.count = Phase.COOL, 0
        return self.phase.value


machine = Machine()
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches)
    point = manager.restore(state)
    for x, y in batches:
        train_step(x, y, machine.advance())
        manager.step(state)
    manager.save_final(state)
os._exit(0)
