# truth: differs
# class: attribute
# head: pynative
# Q-learning on a random walk; observations are normalized by running moments, exploration decays.

ms.set_seed(150)
np.random.seed(150)


class RunningMoments:
    def __init__(self, width):
        self.count, self.mean, self.m2 = 1e-4, np.zeros(width), np.zeros(width)

    def update(self, rows):
        for row in rows:
            self.count += 1
            delta = row - self.mean
            self.mean = self.mean + delta / self.count
            self.m2 = self.m2 + delta * (row - self.mean)

    def normalize(self, rows):
        return ((rows - self.mean) / np.sqrt(self.m2 / self.count + 1e-2)).astype(np.float32)


class Agent:
    def __init__(self):
        self.q = nn.SequentialCell(nn.Dense(3, 16), nn.Tanh(), nn.Dense(16, 2))
        self.optimizer = nn.Adam(self.q.trainable_params(), 1e-2)
        self.moments = RunningMoments(3)
        self.grad_fn = ms.value_and_grad(self.loss, None, self.q.trainable_params())

    def loss(self, states, onehot, target):
        return (((self.q(states) * onehot).sum(1) - target) ** 2).mean()

    def act(self, states):
        greedy = self.q(ms.Tensor(self.moments.normalize(states))).asnumpy().argmax(1)
        return np.where(np.random.rand(len(states)) < 0.2, np.random.randint(0, 2, len(states)), greedy)

    def learn(self, states, actions, rewards, after):
        self.moments.update(states)
        best = self.q(ms.Tensor(self.moments.normalize(after))).asnumpy().max(1)
        target = ms.Tensor((rewards + 0.9 * best).astype(np.float32))
        states = ms.Tensor(self.moments.normalize(states))
        loss, grads = self.grad_fn(states, ms.Tensor(np.eye(2, dtype=np.float32)[actions]), target)
        self.optimizer(grads)
        return loss


agent = Agent()
q = agent.q
ticks = ck.data.resumable(list(range(36)), epochs=1)
save, saving = ck.SaveEvery(micro_steps=5), ck.Saving(when_busy="wait")
with ck.CheckpointManager(os.environ["ROOT"], save=save, saving=saving) as manager:
    state = ck.StateManager([agent.q, agent.optimizer], ticks)
    manager.restore(state)
    for _ in ticks:
        states = np.random.randn(16, 3) * [1.0, 5.0, 20.0] + [0.0, 3.0, -10.0]
        actions = agent.act(states)
        after = states + np.where(actions[:, None] == 1, 1.0, -1.0) * [0.5, 1.0, 2.0]
        rewards = -np.abs(after[:, 0]) + 0.1 * after[:, 1]
        loss = agent.learn(states, actions, rewards, after)
        manager.step(state, {"loss": loss})
    manager.save_final(state)
os._exit(0)
