# truth: differs
# class: outside
# head: imports_deque
# Policy gradient on a small tracking game; the environment is stored by name, but the FrameStack wrapper's deque of the last observations is not.


ms.set_seed(311)


class Tracking:
    def __init__(self):
        self.pos, self.vel, self.target = 0.0, 0.0, 1.0

    def observe(self):
        return np.array([self.pos, self.target], np.float32)

    def step(self, action, wind):
        self.vel = 0.8 * self.vel + 0.3 * float(np.clip(action, -2, 2)) + 0.1 * float(wind)
        self.pos = 0.95 * self.pos + self.vel
        self.target = -self.target if abs(self.pos - self.target) < 0.1 else self.target
        return self.observe(), -abs(self.pos - self.target)

    def state_dict(self):
        return {"pos": self.pos, "vel": self.vel, "target": self.target}

    def load_state_dict(self, state):
        self.pos, self.vel, self.target = state["pos"], state["vel"], state["target"]


class Wrapper:
    def __init__(self, env):
        self.env = env

    def __getattr__(self, name):
        return getattr(self.env, name)


class FrameStack(Wrapper):
    def __init__(self, env, k):
        super().__init__(env)
        self.frames = deque([np.zeros(2, np.float32)] * k, maxlen=k)

    def observation(self):
        return np.concatenate(self.frames)

    def step(self, action, wind):
        obs, reward = self.env.step(action, wind)
        self.frames.append(obs)
        return self.observation(), reward


game = Tracking()
env = FrameStack(game, k=5)
policy = nn.SequentialCell(nn.Dense(10, 8), nn.Tanh(), nn.Dense(8, 1))
opt = nn.Adam(policy.trainable_params(), 0.02)


def surrogate(obs, action, advantage):
    return (advantage * (policy(obs) - action) ** 2).mean()


vg = ms.value_and_grad(surrogate, None, policy.trainable_params())
noise = np.random.default_rng(3)
winds = [(np.random.RandomState(k).randn(4).astype(np.float32),) for k in range(8)]
batches = ck.data.resumable(winds, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([policy, opt], batches, game=game, noise=noise)
    manager.restore(state)
    for (wind,) in batches:
        seen, acts, rewards = [], [], []
        obs = env.observation()
        for w in wind:
            mean = float(policy(ms.Tensor(obs[None])).asnumpy()[0, 0])
            action = mean + 0.3 * noise.standard_normal()
            seen.append(obs)
            acts.append([action])
            obs, reward = env.step(action, w)
            rewards.append(reward)
        returns = np.cumsum(rewards[::-1])[::-1]
        adv = (returns - returns.mean()).astype(np.float32)[:, None]
        loss, grads = vg(ms.Tensor(np.stack(seen)), ms.Tensor(np.array(acts, np.float32)), ms.Tensor(adv))
        opt(grads)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
