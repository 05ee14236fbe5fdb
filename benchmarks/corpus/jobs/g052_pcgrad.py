# truth: exact
# class: global
# head: imports_random
# PCGrad on three regression tasks: the order of the projections is drawn from Python's global random, nothing else lasts.


random.seed(3)
ms.set_seed(3)
TASKS = ("sum", "product", "maximum")


class SharedTrunk(nn.Cell):
    def __init__(self):
        super().__init__()
        self.trunk = nn.SequentialCell(nn.Dense(5, 10), nn.Tanh())
        self.heads = nn.CellList([nn.Dense(10, 1) for _ in TASKS])

    def construct(self, x, task):
        return self.heads[task](self.trunk(x))


def flatten(grads):
    return np.concatenate([g.asnumpy().ravel() for g in grads]).astype(np.float64)


def unflatten(vector, params):
    out, at = [], 0
    for p in params:
        n = int(np.prod(p.shape))
        out.append(ms.Tensor(vector[at : at + n].reshape(p.shape).astype(np.float32)))
        at += n
    return tuple(out)


def project_conflicting(vectors):
    result = np.zeros_like(vectors[0])
    for i, v in enumerate(vectors):
        g = v.copy()
        others = [w for j, w in enumerate(vectors) if j != i]
        random.shuffle(others)
        for w in others:
            dot = g @ w
            if dot < 0:
                g -= dot / (w @ w + 1e-12) * w
        result += g
    return result / len(vectors)


net = SharedTrunk()
params = net.trainable_params()
mse = nn.MSELoss()
opt = nn.Adam(params, learning_rate=0.02)
task_grads = [ms.value_and_grad(lambda x, y, t=t: mse(net(x, t), y), None, params) for t in range(len(TASKS))]

x = np.random.RandomState(2).uniform(-1, 1, (48, 5)).astype(np.float32)
y = np.stack([x.sum(1), x[:, 0] * x[:, 1], x.max(1)], 1).astype(np.float32)
loader = [(x[i : i + 6], y[i : i + 6]) for i in range(0, 48, 6)]
batches = ck.data.resumable(loader, epochs=3)

with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    for xb, yb in batches:
        vectors = []
        for t, vg in enumerate(task_grads):
            _, grads = vg(ms.Tensor(xb), ms.Tensor(yb[:, t : t + 1].copy()))
            vectors.append(flatten(grads))
        opt(unflatten(project_conflicting(vectors), params))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
