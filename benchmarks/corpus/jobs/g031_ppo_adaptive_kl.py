# truth: differs
# class: variable
# head: imports_ops
# PPO with a KL penalty whose coefficient is doubled or halved (adaptive KL); the coefficient is a plain attribute of the agent.


ms.set_seed(101)
np.random.seed(101)

OBS, ACTIONS = 6, 3


class Policy(nn.Cell):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Dense(OBS, 10)
        self.fc2 = nn.Dense(10, ACTIONS)

    def construct(self, obs):
        return ops.log_softmax(self.fc2(ops.tanh(self.fc1(obs))), 1)


class PPOAgent:
    def __init__(self, kl_target=0.01):
        self.policy = Policy()
        self.optimizer = nn.Adam(self.policy.trainable_params(), learning_rate=0.02)
        self.kl_target = kl_target
        self.kl_coef = 1.0
        self._vg = ms.value_and_grad(self._loss, None, self.policy.trainable_params(), has_aux=True)

    def _loss(self, obs, action_mask, adv, old_logp, coef):
        logp = self.policy(obs)
        ratio = ops.exp(((logp - old_logp) * action_mask).sum(1))
        kl = (ops.exp(old_logp) * (old_logp - logp)).sum(1).mean()
        return -(ratio * adv).mean() + coef * kl, kl

    def act(self, obs):
        logp = self.policy(ms.Tensor(obs)).asnumpy().copy()
        gumbel = -np.log(-np.log(np.random.uniform(1e-6, 1 - 1e-6, logp.shape)))
        return (logp + gumbel).argmax(1), logp

    def learn(self, obs, epochs=2):
        actions, old_logp = self.act(obs)
        reward = (actions == obs[:, :ACTIONS].argmax(1)).astype(np.float32)
        adv = (reward - reward.mean()) / (reward.std() + 1e-3)
        mask = np.eye(ACTIONS, dtype=np.float32)[actions]
        for _ in range(epochs):
            coef = ms.Tensor(self.kl_coef, ms.float32)
            (_, kl), grads = self._vg(ms.Tensor(obs), ms.Tensor(mask), ms.Tensor(adv), ms.Tensor(old_logp), coef)
            self.optimizer(grads)
        _, kl_after = self._loss(ms.Tensor(obs), ms.Tensor(mask), ms.Tensor(adv), ms.Tensor(old_logp), coef)
        kl_value = float(kl_after.asnumpy())
        if kl_value > 1.5 * self.kl_target:
            self.kl_coef *= 2.0
        elif kl_value < self.kl_target / 1.5:
            self.kl_coef /= 2.0
        return reward.mean()


agent = PPOAgent()
observations = np.random.RandomState(1).randn(10, 8, OBS).astype(np.float32)
batches = ck.data.resumable([(o,) for o in observations], epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([agent.policy, agent.optimizer], batches)
    manager.restore(state)
    for (obs,) in batches:
        manager.fence()
        print("reward", agent.learn(obs))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
