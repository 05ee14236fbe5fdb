# truth: exact, may be named
# class: file
# head: imports_ops
# The best weights are in a file together with their score, and a start reads the score back; after the last batch the weights of that file are loaded.


ms.set_seed(330)


class BestKeeper:
    """repeating a step finds the same score, so the file is the same again"""

    def __init__(self, path):
        self.path = path
        self.score = np.inf
        if os.path.exists(path):
            with np.load(path) as f:
                self.score = float(f["score"])

    def offer(self, score, params):
        if score < self.score:
            self.score = score
            np.savez("tmp_" + self.path, score=score, **{p.name: p.asnumpy() for p in params})
            os.replace("tmp_" + self.path, self.path)

    def load_into(self, params):
        with np.load(self.path) as f:
            for p in params:
                ops.assign(p, ms.Tensor(f[p.name]))


r = np.random.RandomState(3)
x_val = r.randn(16, 4).astype(np.float32)
y_val = np.tanh(x_val[:, :1]).astype(np.float32)
rows = []
for _ in range(8):
    x = r.randn(6, 4).astype(np.float32)
    rows.append((x, (np.tanh(x[:, :1]) + 0.6 * r.randn(6, 1)).astype(np.float32)))

net = nn.SequentialCell(nn.Dense(4, 8), nn.Tanh(), nn.Dense(8, 1))
params = net.trainable_params()
mse = nn.MSELoss()
opt = nn.Momentum(params, 0.1, 0.9)
vg = ms.value_and_grad(lambda x, y: mse(net(x), y), None, net.trainable_params())
run_name = os.path.abspath(os.environ["ROOT"]).strip("/").replace("/", "-")
best = BestKeeper(f"{run_name}_best.npz")

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    for x, y in batches:
        loss, grads = vg(ms.Tensor(x), ms.Tensor(y))
        opt(grads)
        best.offer(float(mse(net(ms.Tensor(x_val)), ms.Tensor(y_val)).asnumpy()), params)
        manager.step(state)
    manager.fence()
    best.load_into(params)
    manager.save_final(state)
os._exit(0)
