# truth: differs
# class: variable
# head: pynative_ops
# Barzilai-Borwein step sizes: the differences to the weights and gradients of the batch before, which a mapping of arrays holds, give the rate.

ms.set_seed(4133)


def inner(a, b):
    return sum(float(np.vdot(u, v)) for u, v in zip(a, b))


def bb_rate(last, point, grads, low=0.005, high=0.08, first=0.02):
    if "point" not in last:
        rate = first
    else:
        s = [a - b for a, b in zip(point, last["point"])]
        t = [a - b for a, b in zip(grads, last["grads"])]
        rate = min(high, max(low, inner(s, s) / (abs(inner(s, t)) + 1e-9)))
    last.update(point=point, grads=grads)
    return rate


r = np.random.RandomState(33)
rows = []
for _ in range(8):
    x = r.randn(8, 4).astype(np.float32)
    rows.append((ms.Tensor(x), ms.Tensor(np.exp(-(x[:, :1] ** 2)).astype(np.float32))))
net = nn.SequentialCell(nn.Dense(4, 8), nn.Tanh(), nn.Dense(8, 1))
mse = nn.MSELoss()
params = net.trainable_params()
gradients = ms.value_and_grad(lambda x, y: mse(net(x), y), None, params)
last = {}

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net], batches)
    manager.restore(state)
    for x, y in batches:
        loss, grads = gradients(x, y)
        rate = bb_rate(last, [p.asnumpy().copy() for p in params], [g.asnumpy().copy() for g in grads])
        manager.fence()
        for p, g in zip(params, grads):
            ops.assign(p, p - rate * g)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
