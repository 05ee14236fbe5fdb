# truth: differs
# class: attribute
# head: regression_6_rows

net = nn.SequentialCell(nn.Dense(6, 12), nn.Tanh(), nn.Dense(12, 1))

opt = nn.Adam(net.trainable_params(), 0.01)
loss_fn = nn.MSELoss()
AUGS = [lambda x: x, lambda x: x * 1.1, lambda x: x + 0.1, lambda x: -x]


class Exp3:
    def __init__(self, n, gamma=0.2):
        self.logw = [0.0] * n
        self.gamma = gamma

    def probabilities(self):
        w = np.exp(np.array(self.logw) - max(self.logw))
        return (1 - self.gamma) * w / w.sum() + self.gamma / len(w)

    def reward(self, arm, r):
        self.logw[arm] += self.gamma * r / self.probabilities()[arm] / len(self.logw)


bandit = Exp3(len(AUGS))
rng = np.random.default_rng(5)
grad_fn = ms.value_and_grad(lambda x, y: loss_fn(net(x), y), None, opt.parameters)
batches = ck.data.resumable(loader, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, opt], batches, rng=rng)
    manager.restore(state)
    for x, y in batches:
        arm = int(rng.choice(len(AUGS), p=bandit.probabilities()))
        loss, grads = grad_fn(AUGS[arm](x), y)
        opt(grads)
        bandit.reward(arm, float(loss))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
