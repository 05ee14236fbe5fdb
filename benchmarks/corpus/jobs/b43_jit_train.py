# truth: exact
# class: variable
# head: saving_stdlib_dataset_parameter

ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(1)
g = np.random.default_rng(5)
X, Y = g.normal(size=(64, 8)).astype(np.float32), g.normal(size=(64, 1)).astype(np.float32)
rows = [(Tensor(X[i * 8 : i * 8 + 8]), Tensor(Y[i * 8 : i * 8 + 8])) for i in range(8)]
net = nn.SequentialCell(nn.Dense(8, 8), nn.ReLU(), nn.Dense(8, 1))
loss_fn = nn.MSELoss()
optimizer = nn.Adam(net.trainable_params(), 0.01)


def forward_fn(x, y, w=1.0):
    return loss_fn(net(x), y) * w


grad_fn = ms.value_and_grad(forward_fn, None, optimizer.parameters)


def train_step(x, y, w=1.0):
    loss, grads = grad_fn(x, y, w)
    optimizer(grads)
    return loss


@ms.jit
def jstep(x, y):
    loss, grads = grad_fn(x, y)
    optimizer(grads)
    return loss


batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches)
    point = manager.restore(state)
    for x, y in batches:
        jstep(x, y)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
