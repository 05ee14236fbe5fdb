# truth: differs
# class: attribute
# head: imports_ops
# DDPG-like actor and critic; the exploration noise is an Ornstein-Uhlenbeck process, of which only the generator is given.


ms.set_seed(64)


class OUNoise:
    def __init__(self, size, rng, theta=0.15, sigma=0.3):
        self.rng, self.theta, self.sigma = rng, theta, sigma
        self.x = np.zeros(size)

    def sample(self):
        self.x = self.x + self.theta * (0.0 - self.x) + self.sigma * self.rng.standard_normal(self.x.shape)
        return self.x


class ActorCritic(nn.Cell):
    def __init__(self):
        super().__init__()
        self.actor = nn.SequentialCell(nn.Dense(4, 8), nn.ReLU(), nn.Dense(8, 2), nn.Tanh())
        self.critic = nn.SequentialCell(nn.Dense(6, 8), nn.ReLU(), nn.Dense(8, 1))


ac = ActorCritic()
actor_opt = nn.Adam(ac.actor.trainable_params(), learning_rate=0.01)
critic_opt = nn.Adam(ac.critic.trainable_params(), learning_rate=0.02)


def critic_loss(s, a, r):
    return ((ac.critic(ops.concat((s, a), 1)) - r) ** 2).mean()


def actor_loss(s):
    return -ac.critic(ops.concat((s, ac.actor(s)), 1)).mean()


critic_vg = ms.value_and_grad(critic_loss, None, ac.critic.trainable_params())
actor_vg = ms.value_and_grad(actor_loss, None, ac.actor.trainable_params())


def reward(s, a):
    """wants the action to undo the first two coordinates"""
    return (-((s[:, :2] + a) ** 2).sum(1, keepdims=True)).astype(np.float32)


def main():
    states = np.random.RandomState(3).uniform(-1, 1, (9, 6, 4)).astype(np.float32)
    rng = np.random.default_rng(8)
    noise = OUNoise(2, rng)
    batches = ck.data.resumable([(s,) for s in states], epochs=3)
    with ck.CheckpointManager(
        os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
    ) as manager:
        state = ck.StateManager([ac, critic_opt], batches, actor_opt=actor_opt, rng=rng)
        manager.restore(state)
        for (s,) in batches:
            manager.fence()
            a = np.clip(ac.actor(ms.Tensor(s)).asnumpy() + noise.sample(), -1, 1).astype(np.float32)
            _, grads = critic_vg(ms.Tensor(s), ms.Tensor(a), ms.Tensor(reward(s, a)))
            critic_opt(grads)
            _, grads = actor_vg(ms.Tensor(s))
            actor_opt(grads)
            manager.step(state)
        manager.save_final(state)


main()
os._exit(0)
