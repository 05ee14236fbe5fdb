# truth: differs
# class: global
# head: imports_ops
# SVRG: every seven steps the weights and the full gradient are remembered in module globals for the variance reduction.


ms.set_seed(77)

N, D, B = 40, 6, 5
A = np.random.RandomState(1).randn(N, D).astype(np.float32)
b = (A @ np.linspace(-1, 1, D).astype(np.float32)).reshape(N, 1)

net = nn.Dense(D, 1)
mse = nn.MSELoss()
theta = net.trainable_params()
sgd = nn.SGD(theta, learning_rate=0.05)
grad = ms.value_and_grad(lambda x, y: mse(net(x), y), None, theta)

snapshot = None  # weights at the last anchor
full_grad = None  # and the full gradient there
age = 0


def set_weights(values):
    for p, v in zip(theta, values):
        ops.assign(p, ms.Tensor(v))


def anchor():
    global snapshot, full_grad, age
    snapshot = [p.asnumpy().copy() for p in theta]
    _, g = grad(ms.Tensor(A), ms.Tensor(b))
    full_grad = [t.asnumpy() for t in g]
    age = 0


def svrg_step(x, y):
    global age
    if snapshot is None or age == 7:
        anchor()
    loss, g_now = grad(x, y)
    here = [p.asnumpy().copy() for p in theta]
    set_weights(snapshot)
    _, g_old = grad(x, y)
    set_weights(here)
    sgd(tuple(ms.Tensor(a.asnumpy() - o.asnumpy() + f) for a, o, f in zip(g_now, g_old, full_grad)))
    age += 1
    return loss


loader = [(ms.Tensor(A[i : i + B]), ms.Tensor(b[i : i + B])) for i in range(0, N, B)]
batches = ck.data.resumable(loader, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"],
    save=ck.SaveEvery(micro_steps=5),
    saving=ck.Saving(when_busy="wait", window="off"),
) as manager:
    state = ck.StateManager([net, sgd], batches)
    manager.restore(state)
    for x, y in batches:
        svrg_step(x, y)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
