# truth: exact
# class: attribute
# head: pynative
# A recorder's state_dict returns its live arrays, integer keys, tuples, None and bools; the arrays are changed in place right after a save.

ms.set_seed(4154)


class TargetSmoother:
    """running mean and range of the targets, by group of rows"""

    def __init__(self, groups):
        self.means = {g: np.zeros(1) for g in range(groups)}
        self.range = (None, None)
        self.warm = False

    def __call__(self, group, y):
        self.means[group] *= 0.7
        self.means[group] += 0.3 * float(y.mean())
        low, high = self.range
        self.range = (
            float(y.min()) if low is None else min(low, float(y.min())),
            float(y.max()) if high is None else max(high, float(y.max())),
        )
        self.warm = self.warm or all(np.any(m) for m in self.means.values())
        share = 0.2 if self.warm else 0.0
        low, high = self.range
        return np.clip((1 - share) * y + share * self.means[group], 0.9 * low, 0.9 * high).astype(np.float32)

    def state_dict(self):
        return {"means": self.means, "range": self.range, "warm": self.warm}

    def load_state_dict(self, state):
        self.means, self.range, self.warm = state["means"], state["range"], state["warm"]


r = np.random.RandomState(54)
rows = []
for number in range(8):
    x = r.randn(8, 4).astype(np.float32)
    rows.append((number % 3, x, (x[:, :1] * x[:, 1:2] + 0.5 * number).astype(np.float32)))
net = nn.SequentialCell(nn.Dense(4, 8), nn.Tanh(), nn.Dense(8, 1))
loss_cell = nn.WithLossCell(net, nn.MSELoss())
cell = ck.AccumulationTrainCell(loss_cell, nn.Adam(net.trainable_params(), 0.02), accumulation_steps=2).set_train()
smoother = TargetSmoother(3)

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches, smoother=smoother)
    manager.restore(state)
    for group, x, y in batches:
        cell(ms.Tensor(x), ms.Tensor(smoother(group, y)))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
