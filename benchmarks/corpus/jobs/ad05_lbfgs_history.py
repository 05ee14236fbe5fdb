# truth: differs
# class: attribute
# head: saving_collections_dataset_parameter

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(3)
rng0 = np.random.default_rng(11)
X = rng0.normal(size=(80, 6)).astype(np.float32)
Y = (X[:, :1] * 0.7 - X[:, 1:2] ** 2 + 0.1 * rng0.normal(size=(80, 1))).astype(np.float32)
loader = [(Tensor(X[i : i + 8]), Tensor(Y[i : i + 8])) for i in range(0, 80, 8)]
net = nn.SequentialCell(nn.Dense(6, 12), nn.Tanh(), nn.Dense(12, 1))

loss_fn = nn.MSELoss()
params = net.trainable_params()
grad_fn = ms.value_and_grad(lambda x, y: loss_fn(net(x), y), None, params)


def flatten(tensors):
    return np.concatenate([t.asnumpy().ravel() for t in tensors]).astype(np.float64)


def make_lbfgs(params, memory=5, lr=0.1):
    pairs = collections.deque(maxlen=memory)
    last = [None, None]

    def step(grads):
        theta, g = flatten(params), flatten(grads)
        if last[0] is not None:
            s, y = theta - last[0], g - last[1]
            if s @ y > 1e-10:
                pairs.append((s, y, 1 / (s @ y)))
        q, alphas = g.copy(), []
        for s, y, rho in reversed(pairs):
            alphas.append(rho * (s @ q))
            q -= alphas[-1] * y
        if pairs:
            s, y, _ = pairs[-1]
            q *= (s @ y) / (y @ y)
        for (s, y, rho), a in zip(pairs, reversed(alphas)):
            q += (a - rho * (y @ q)) * s
        last[:] = theta, g
        new, at = theta - lr * q, 0
        for p in params:
            n = int(np.prod(p.shape))
            ops.assign(p, Tensor(new[at : at + n].reshape(p.shape).astype(np.float32)))
            at += n

    return step


step = make_lbfgs(params)
batches = ck.data.resumable(loader, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net], batches)
    manager.restore(state)
    for x, y in batches:
        loss, grads = grad_fn(x, y)
        step(grads)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
