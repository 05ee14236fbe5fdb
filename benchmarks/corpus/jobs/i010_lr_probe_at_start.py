# truth: differs
# class: variable
# head: imports_ops
# Each start probes with the weights of the moment (after the restore) which step size lowers the loss most, and uses it from then on in a plain SGD step.


ms.set_seed(310)
net = nn.SequentialCell(nn.Dense(5, 8), nn.Tanh(), nn.Dense(8, 1))
params = net.trainable_params()
mse = nn.MSELoss()
vg = ms.value_and_grad(lambda x, y: mse(net(x), y), None, net.trainable_params())


def sgd(lr, grads):
    for p, g in zip(params, grads):
        ops.assign_sub(p, lr * g)


def probe(x, y, candidates):
    """trial steps, each taken back"""
    before = [p.asnumpy().copy() for p in params]
    first, grads = vg(x, y)
    gain = {}
    for lr in candidates:
        sgd(lr, grads)
        gain[lr] = float(first.asnumpy()) - float(mse(net(x), y).asnumpy())
        for p, w in zip(params, before):
            ops.assign(p, ms.Tensor(w))
    # a flat norm rule refines the winner, as the paper suggests
    norm = float(np.sqrt(sum((g.asnumpy() ** 2).sum() for g in grads)))
    return max(gain, key=gain.get) / (1 + 0.1 * norm)


r = np.random.RandomState(9)
rows = []
for _ in range(8):
    x = r.randn(6, 5).astype(np.float32)
    rows.append((ms.Tensor(x), ms.Tensor((x[:, :1] * x[:, 1:2]).astype(np.float32))))

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net], batches)
    manager.restore(state)
    lr = probe(*rows[0], candidates=(0.01, 0.03, 0.1, 0.2))
    for x, y in batches:
        manager.fence()
        loss, grads = vg(x, y)
        sgd(lr, grads)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
