# truth: differs
# class: attribute
# head: regression_8_train_step



class RunningMeanStd:
    def __init__(self):
        self.mean, self.var, self.count = 0.0, 1.0, 1e-4

    def update(self, x):
        bm, bv, bc = x.mean(), x.var(), x.size
        d = bm - self.mean
        tot = self.count + bc
        self.var = (self.var * self.count + bv * bc + d * d * self.count * bc / tot) / tot
        self.mean += d * bc / tot
        self.count = tot

    def normalize(self, x):
        return (x - self.mean) / np.sqrt(self.var + 1e-8)


rms = RunningMeanStd()
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches)
    point = manager.restore(state)
    for x, y in batches:
        r = y.asnumpy()
        rms.update(r)
        train_step(x, Tensor(rms.normalize(r).astype(np.float32)))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
