# truth: exact
# class: attribute
# head: imports
# A LinUCB bandit chooses the augmentation strength by context; its matrices A and b are given by name with ck.attributes.


ms.set_seed(313)


class LinUCB:
    def __init__(self, arms, dim, alpha=0.6):
        self.alpha = alpha
        self.A = np.stack([np.eye(dim)] * arms)
        self.b = np.zeros((arms, dim))

    def choose(self, context):
        scores = []
        for A, b in zip(self.A, self.b):
            inv = np.linalg.inv(A)
            scores.append(inv @ b @ context + self.alpha * np.sqrt(context @ inv @ context))
        return int(np.argmax(scores))

    def reward(self, arm, context, value):
        self.A[arm] += np.outer(context, context)
        self.b[arm] += value * context


STRENGTHS = (0.0, 0.1, 0.3)
net = nn.SequentialCell(nn.Dense(4, 8), nn.ReLU(), nn.Dense(8, 1))
mse = nn.MSELoss()
opt = nn.Momentum(net.trainable_params(), 0.03, 0.9)
vg = ms.value_and_grad(lambda x, y: mse(net(x), y), None, net.trainable_params())
bandit = LinUCB(len(STRENGTHS), 3)

r = np.random.RandomState(8)
rows = []
for k in range(8):
    x = (r.randn(6, 4) * (1 + 0.2 * k)).astype(np.float32)
    rows.append((x, np.abs(x).sum(1, keepdims=True).astype(np.float32) * 0.3))

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches, bandit=ck.attributes(bandit, "A", "b"))
    manager.restore(state)
    for x, y in batches:
        context = np.array([1.0, x.std(), y.mean()])
        arm = bandit.choose(context)
        mirrored = x * (1 - STRENGTHS[arm]) + x[::-1] * STRENGTHS[arm]
        before = float(mse(net(ms.Tensor(x)), ms.Tensor(y)).asnumpy())
        loss, grads = vg(ms.Tensor(mirrored.astype(np.float32)), ms.Tensor(y))
        opt(grads)
        after = float(mse(net(ms.Tensor(x)), ms.Tensor(y)).asnumpy())
        bandit.reward(arm, context, before - after)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
