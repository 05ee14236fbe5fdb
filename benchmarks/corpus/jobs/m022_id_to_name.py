# truth: exact
# class: outside
# head: pynative_ops
# Adagrad sums are kept in NumPy arrays keyed by id(weight) while the process lives; state_dict and load_state_dict translate ids to names and back.

ms.set_seed(4322)


class NumpyAdagrad:
    def __init__(self, weights, rate):
        self.weights, self.rate = list(weights), rate
        self.sums = {id(w): np.full(w.shape, 1e-4) for w in self.weights}
        self.calls = 0

    def step(self, grads):
        self.calls += 1
        for w, grad in zip(self.weights, grads):
            g = grad.asnumpy().astype(np.float64)
            self.sums[id(w)] += g * g
            change = self.rate * g / np.sqrt(self.sums[id(w)])
            ops.assign(w, w - ms.Tensor(change.astype(np.float32)))

    def state_dict(self):
        return {"calls": self.calls, "sums": {w.name: self.sums[id(w)].copy() for w in self.weights}}

    def load_state_dict(self, state):
        by_name = {w.name: w for w in self.weights}
        if missing := by_name.keys() ^ state["sums"].keys():
            raise KeyError(f"other weights: {sorted(missing)}")
        self.calls = state["calls"]
        self.sums = {id(by_name[name]): np.array(value) for name, value in state["sums"].items()}


r = np.random.RandomState(22)
rows = []
for _ in range(8):
    x = r.randn(8, 4).astype(np.float32)
    rows.append((ms.Tensor(x), ms.Tensor((x[:, :1] * x[:, 1:2] + x[:, 2:3]).astype(np.float32))))
net = nn.SequentialCell(nn.Dense(4, 8), nn.ReLU(), nn.Dense(8, 1))
mse = nn.MSELoss()
gradients = ms.value_and_grad(lambda x, y: mse(net(x), y), None, net.trainable_params())
adagrad = NumpyAdagrad(net.trainable_params(), 0.1)

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net], batches, adagrad=adagrad)
    manager.restore(state)
    for x, y in batches:
        loss, grads = gradients(x, y)
        manager.fence()
        adagrad.step(grads)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
