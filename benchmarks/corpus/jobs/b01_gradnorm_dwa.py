# truth: differs
# class: attribute
# head: regression_8_train_step



class DWA:
    def __init__(self, n, T=2.0):
        self.hist = [[1.0] * n, [1.0] * n]
        self.T = T

    def weights(self):
        r = np.array(self.hist[-1]) / np.array(self.hist[-2])
        e = np.exp(r / self.T)
        return len(r) * e / e.sum()

    def push(self, losses):
        self.hist.append(losses)


dwa = DWA(2)
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches)
    point = manager.restore(state)
    for x, y in batches:
        w = dwa.weights()
        l1 = float(train_step(x, y, float(w[0])))
        l2 = float(train_step(x, -y, float(w[1])))
        dwa.push([l1, l2])
        manager.step(state)
    manager.save_final(state)
os._exit(0)
