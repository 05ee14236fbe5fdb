# truth: differs
# class: global
# head: saving_dataset_parameter

ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(3)
rng0 = np.random.default_rng(11)
X = rng0.normal(size=(80, 6)).astype(np.float32)
Y = (X[:, :1] * 0.7 - X[:, 1:2] ** 2 + 0.1 * rng0.normal(size=(80, 1))).astype(np.float32)
loader = [(Tensor(X[i : i + 8]), Tensor(Y[i : i + 8])) for i in range(0, 80, 8)]
net = nn.SequentialCell(nn.Dense(6, 12), nn.Tanh(), nn.Dense(12, 1))

loss_fn = nn.MSELoss()
opt = nn.Adam(net.trainable_params(), 0.01)


def forward(x, y, w):
    return loss_fn(net(x), y) * w


grad_fn = ms.value_and_grad(forward, None, opt.parameters)


@ms.jit
def train_step(x, y, w):
    loss, grads = grad_fn(x, y, w)
    opt(grads)
    return loss


running = {"mean": 1.0, "n": 0}
batches = ck.data.resumable(loader, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    for x, y in batches:
        w = 1.0 / max(running["mean"], 0.1)
        raw = float(train_step(x, y, Tensor(w, ms.float32))) / w
        running["n"] += 1
        running["mean"] += (raw - running["mean"]) / running["n"]
        manager.step(state)
    manager.save_final(state)
os._exit(0)
