# truth: differs
# class: attribute
# head: imports_random_ops
# REINFORCE on a drifting bandit: the environment walks by itself and the baseline hides in a mutable default argument.


ms.set_seed(66)
random.seed(66)


class DriftingBandit:
    def __init__(self, arms=4):
        self.means = [0.1 * a for a in range(arms)]

    def observe(self):
        return np.array(self.means, np.float32)

    def pull(self, arm):
        for a in range(len(self.means)):
            self.means[a] += 0.1 * (random.random() - 0.5)
        return self.means[arm]


def baseline(reward, memory=[0.0]):
    memory[0] = 0.8 * memory[0] + 0.2 * reward
    return memory[0]


class PolicyLoss(nn.Cell):
    def __init__(self):
        super().__init__()
        self.policy = nn.SequentialCell(nn.Dense(4, 8), nn.Tanh(), nn.Dense(8, 4))

    def construct(self, obs, action, advantage):
        return ops.cross_entropy(self.policy(obs), action) * advantage


pg = PolicyLoss()
cell = ck.AccumulationTrainCell(pg, nn.Adam(pg.trainable_params(), 0.05), 2).set_train()
env = DriftingBandit()

episodes = ck.data.resumable(list(range(28)), epochs=1)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, episodes)
    manager.restore(state)
    for episode in episodes:
        obs = ms.Tensor(env.observe()[None])
        p = ops.softmax(pg.policy(obs), -1).asnumpy()[0].astype(float)
        action = random.choices(range(4), weights=p)[0]
        reward = env.pull(action)
        adv = reward - baseline(reward)
        cell(obs, ms.Tensor([action], ms.int32), ms.Tensor(adv, ms.float32))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
