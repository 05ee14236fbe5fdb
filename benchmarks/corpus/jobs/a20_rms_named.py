# truth: exact
# class: attribute
# head: regression_8_train_step



class RunningMeanStd:
    def __init__(self):
        self.mean, self.count = 0.0, 0

    def update(self, x):
        self.count += 1
        self.mean += (float(x.mean()) - self.mean) / self.count


rms = RunningMeanStd()
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches, rms=ck.attributes(rms, "mean", "count"))
    point = manager.restore(state)
    for x, y in batches:
        rms.update(y.asnumpy())
        train_step(x, y - rms.mean)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
