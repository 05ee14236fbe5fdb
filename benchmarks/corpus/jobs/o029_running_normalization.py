# truth: exact
# class: attribute
# head: imports
# Inputs are normalized by mean and deviation of all that was seen so far (Welford); the object has state_dict and load_state_dict and is given by name. GRAPH mode.


ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(3529)


class RunningNorm:
    def __init__(self, width):
        self.count = 0
        self.mean = np.zeros(width)
        self.squares = np.zeros(width)

    def update(self, rows):
        for row in rows.astype(np.float64):
            self.count += 1
            delta = row - self.mean
            self.mean = self.mean + delta / self.count
            self.squares = self.squares + delta * (row - self.mean)

    def __call__(self, rows):
        deviation = np.sqrt(self.squares / max(self.count - 1, 1)) + 1e-6
        return ((rows - self.mean) / deviation).astype(np.float32)

    def state_dict(self):
        return {"count": self.count, "mean": self.mean.copy(), "squares": self.squares.copy()}

    def load_state_dict(self, state):
        self.count = state["count"]
        self.mean, self.squares = np.array(state["mean"]), np.array(state["squares"])


r = np.random.RandomState(29)
rows = []
for _ in range(9):
    x = r.randn(6, 4) * [1, 5, 0.1, 20] + [3, 0, 1, -40]
    y = 0.1 * x[:, 1:2] + 5 * x[:, 2:3]
    rows.append((x, y.astype(np.float32)))
net = nn.SequentialCell(nn.Dense(4, 10), nn.ReLU(), nn.Dense(10, 1))
loss = nn.WithLossCell(net, nn.MSELoss())
step = nn.TrainOneStepCell(loss, nn.Momentum(net.trainable_params(), 0.01, 0.9)).set_train()
norm = RunningNorm(4)

batches = ck.data.resumable(rows, epochs=4)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(step, batches, norm=norm)
    manager.restore(state)
    for x, y in batches:
        x, y = np.asarray(x), np.asarray(y)
        norm.update(x)
        step(ms.Tensor(norm(x)), ms.Tensor(y))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
