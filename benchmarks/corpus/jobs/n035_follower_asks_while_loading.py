# truth: differs
# class: attribute
# head: pynative_ops
# A follower takes its limit from the leader every sixth batch; its load_state_dict takes the limit anew, from what the leader has at that moment. Both are given by name.

ms.set_seed(4435)


class Leader:
    """a slow average of gradient norms"""

    def __init__(self):
        self.level = 1.0

    def add(self, norm):
        self.level = 0.8 * self.level + 0.2 * norm

    def state_dict(self):
        return {"level": self.level}

    def load_state_dict(self, state):
        self.level = state["level"]


class Follower:
    """clips at a share of the leader's level, which it looks up now and then"""

    def __init__(self, leader, share):
        self.leader, self.share = leader, share
        self.calls = 0
        self.look_up()

    def look_up(self):
        self.limit = self.share * self.leader.level

    def factor(self, norm):
        self.calls += 1
        if self.calls % 6 == 0:
            self.look_up()
        return min(1.0, self.limit / norm)

    def state_dict(self):
        return {"calls": self.calls}

    def load_state_dict(self, state):
        self.calls = state["calls"]
        self.look_up()


r = np.random.RandomState(35)
rows = []
for _ in range(8):
    x = r.randn(6, 4).astype(np.float32)
    rows.append((ms.Tensor(x), ms.Tensor((2 * x[:, :1] * x[:, 1:2] + r.randn(6, 1)).astype(np.float32))))
net = nn.SequentialCell(nn.Dense(4, 10), nn.Tanh(), nn.Dense(10, 1))
opt = nn.Momentum(net.trainable_params(), 0.05, 0.9)
mse = nn.MSELoss()
gradients = ms.value_and_grad(lambda x, y: mse(net(x), y), None, net.trainable_params())
leader = Leader()
follower = Follower(leader, 0.6)

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches, follower=follower, leader=leader)
    manager.restore(state)
    for x, y in batches:
        loss, grads = gradients(x, y)
        norm = float(np.sqrt(sum(float((g.asnumpy() ** 2).sum()) for g in grads)))
        leader.add(norm)
        factor = follower.factor(norm)
        opt(tuple(g * factor for g in grads))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
