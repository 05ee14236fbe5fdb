# truth: differs
# class: attribute
# head: regression_8_train_step



class LossSecondMoment:
    def __init__(self, T=10, hist=2):
        self.T = T
        self._loss = np.zeros((T, hist))
        self._cnt = np.zeros(T, dtype=int)

    def weights(self):
        if not (self._cnt >= 1).all():
            return np.ones(self.T) / self.T
        w = np.sqrt((self._loss**2).mean(-1))
        return w / w.sum()

    def sample(self):
        return np.random.choice(self.T, 8, p=self.weights())

    def update(self, ts, loss):
        for t in ts:
            self._loss[t] = np.roll(self._loss[t], 1)
            self._loss[t, 0] = loss
            self._cnt[t] += 1


schedule = LossSecondMoment()
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches)
    point = manager.restore(state)
    for x, y in batches:
        ts = schedule.sample()
        noise = np.random.randn(8, 8).astype(np.float32) * (ts[:, None] / 10).astype(np.float32)
        loss = train_step(x + Tensor(noise), y)
        schedule.update(ts, float(loss))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
