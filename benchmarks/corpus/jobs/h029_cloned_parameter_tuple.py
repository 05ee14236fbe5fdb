# truth: differs
# class: attribute
# head: imports_ops
# Nesterov-like extrapolation: previous weights are a ParameterTuple.clone() in a plain helper that the StateManager does not get.


ms.set_seed(77)


class Extrapolation:
    """moves the weights a little further in the direction of the last change"""

    def __init__(self, weights, amount):
        self.weights = ms.ParameterTuple(weights)
        self.before = self.weights.clone(prefix="before", init="same")
        self.change = self.weights.clone(prefix="change", init="zeros")
        self.amount = amount

    def apply(self):
        for w, b, c in zip(self.weights, self.before, self.change):
            ops.assign(c, 0.7 * c + 0.3 * (w - b))
            ops.assign(b, w + self.amount * c)
            ops.assign(w, b)


r = np.random.RandomState(19)
rows = []
for _ in range(8):
    x = r.randn(7, 5).astype(np.float32)
    rows.append((ms.Tensor(x), ms.Tensor((x[:, :1] + x[:, 1:2] * x[:, 2:3]).astype(np.float32))))

net = nn.SequentialCell(nn.Dense(5, 10), nn.ReLU(), nn.Dense(10, 1))
mse = nn.MSELoss()
opt = nn.SGD(net.trainable_params(), learning_rate=0.03)
vg = ms.value_and_grad(lambda x, y: mse(net(x), y), None, net.trainable_params())

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    extra = Extrapolation(net.trainable_params(), amount=0.5)
    for x, y in batches:
        manager.fence()
        loss, grads = vg(x, y)
        opt(grads)
        extra.apply()
        manager.step(state)
    manager.save_final(state)
os._exit(0)
