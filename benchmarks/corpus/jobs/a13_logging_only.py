# truth: exact
# class: attribute
# head: regression_8_train_step



log = logging.getLogger("train")


class Meter:
    def __init__(self):
        self.sum = self.n = 0

    def update(self, v):
        self.sum += v
        self.n += 1

    @property
    def avg(self):
        return self.sum / max(self.n, 1)


meter = Meter()
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches)
    point = manager.restore(state)
    for x, y in batches:
        meter.update(float(train_step(x, y)))
        if meter.n % 4 == 0:
            log.warning("avg loss %.3f", meter.avg)
            print(f"avg {meter.avg:.4f}", flush=True)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
