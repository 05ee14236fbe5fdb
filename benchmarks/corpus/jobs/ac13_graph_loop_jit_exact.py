# truth: exact
# class: variable
# head: saving_collections_dataset_parameter

ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(3)
rng0 = np.random.default_rng(11)
X = rng0.normal(size=(80, 6)).astype(np.float32)
Y = (X[:, :1] * 0.7 - X[:, 1:2] ** 2 + 0.1 * rng0.normal(size=(80, 1))).astype(np.float32)
loader = [(Tensor(X[i : i + 8]), Tensor(Y[i : i + 8])) for i in range(0, 80, 8)]
net = nn.SequentialCell(nn.Dense(6, 12), nn.Tanh(), nn.Dense(12, 1))

loss_fn = nn.MSELoss()
opt = nn.Adam(net.trainable_params(), nn.warmup_lr(0.01, 30, 10, 1))
scaler = ms.amp.StaticLossScaler(128.0)


def forward(x, y):
    return scaler.scale(loss_fn(net(x), y))


grad_fn = ms.value_and_grad(forward, None, opt.parameters)


@ms.jit
def train_step(x, y):
    loss, grads = grad_fn(x, y)
    opt(scaler.unscale(grads))
    return scaler.unscale(loss)


window = collections.deque(maxlen=5)
batches = ck.data.resumable(loader, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, opt], batches)
    point = manager.restore(state)
    for step, (x, y) in enumerate(batches, point.batches_delivered):
        window.append(float(train_step(x, y)))
        if step % 5 == 4:
            print("step", step, "loss", sum(window) / len(window))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
