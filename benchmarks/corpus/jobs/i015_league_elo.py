# truth: differs
# class: attribute
# head: imports
# Self-play league: snapshots of the policy join a pool with Elo ratings, and the opponent whose rating is nearest is played against.


ms.set_seed(315)


class Player:
    def __init__(self, name, weights, elo):
        self.name, self.weights, self.elo = name, weights, elo

    def act(self, obs):
        w1, b1, w2, b2 = self.weights
        return np.tanh(obs @ w1.T + b1) @ w2.T + b2


class League:
    def __init__(self, policy, k_factor=32):
        self.policy = policy
        self.k_factor = k_factor
        self.main_elo = 1000.0
        self.players = [Player("init", self._copy(), 1000.0)]

    def _copy(self):
        return [p.asnumpy().copy() for p in self.policy.get_parameters()]

    def opponent(self):
        return min(self.players, key=lambda p: abs(p.elo - self.main_elo))

    def result(self, other, score):
        expected = 1 / (1 + 10 ** ((other.elo - self.main_elo) / 400))
        delta = self.k_factor * (score - expected)
        self.main_elo += delta
        other.elo -= delta

    def snapshot(self, step):
        self.players.append(Player(f"step{step}", self._copy(), self.main_elo))


policy = nn.SequentialCell(nn.Dense(4, 6), nn.Tanh(), nn.Dense(6, 2))
opt = nn.Adam(policy.trainable_params(), 0.03)
vg = ms.value_and_grad(lambda obs, target: ((policy(obs) - target) ** 2).mean(), None, policy.trainable_params())
league = League(policy)
r = np.random.RandomState(19)
deals = [(r.randn(8, 4).astype(np.float32),) for _ in range(8)]

batches = ck.data.resumable(deals, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([policy, opt], batches)
    point = manager.restore(state)
    for step, (obs,) in enumerate(batches, point.batches_delivered):
        rival = league.opponent()
        theirs = rival.act(obs)
        ours = policy(ms.Tensor(obs)).asnumpy()
        score = float((ours[:, 0] + obs[:, 0] > theirs[:, 1]).mean())
        best_response = (-theirs[:, ::-1] + 0.1 * obs[:, :2]).astype(np.float32)
        loss, grads = vg(ms.Tensor(obs), ms.Tensor(np.ascontiguousarray(best_response)))
        opt(grads)
        league.result(rival, score)
        if step % 3 == 2:
            league.snapshot(step)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
