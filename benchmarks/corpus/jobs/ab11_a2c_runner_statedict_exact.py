# truth: exact
# class: random
# head: saving_pynative_dataset_parameter



class GridWorld:
    """A walk on a line with a drifting goal."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.reset()

    def reset(self):
        self.pos, self.t = 0.0, 0
        self.goal = float(self.rng.uniform(-1, 1))
        return self.observe()

    def observe(self):
        return np.array([self.pos, self.goal, self.t / 10], np.float32)

    def act(self, a):
        self.pos += 0.2 * (a - 1)
        self.t += 1
        return self.observe(), -abs(self.pos - self.goal), self.t >= 10


policy = nn.SequentialCell(nn.Dense(3, 12), nn.Tanh(), nn.Dense(12, 3))
policy.update_parameters_name("policy.")

opt = nn.Adam(policy.trainable_params(), 0.01)


class Runner:
    def __init__(self, env, seed):
        self.env, self.rng = env, np.random.default_rng(seed)
        self.obs = env.reset()

    def rollout(self, n):
        obs, act, rew = [], [], []
        for _ in range(n):
            p = ops.softmax(policy(Tensor(self.obs[None])), -1).asnumpy()[0].astype(np.float64)
            a = int(self.rng.choice(3, p=p / p.sum()))
            obs.append(self.obs)
            self.obs, r, done = self.env.act(a)
            act.append(a)
            rew.append(r)
            if done:
                self.obs = self.env.reset()
        returns = np.cumsum(np.array(rew[::-1]) * 0.9)[::-1].astype(np.float32)
        return Tensor(np.array(obs)), Tensor(np.array(act, np.int32)), Tensor(returns.copy())

    def state_dict(self):
        env = self.env
        return {
            "pos": env.pos,
            "t": env.t,
            "goal": env.goal,
            "env_rng": env.rng.bit_generator.state,
            "rng": self.rng.bit_generator.state,
            "obs": self.obs,
        }

    def load_state_dict(self, s):
        self.env.pos, self.env.t, self.env.goal = s["pos"], s["t"], s["goal"]
        self.env.rng.bit_generator.state = s["env_rng"]
        self.rng.bit_generator.state = s["rng"]
        self.obs = s["obs"]


def forward(obs, act, ret):
    logp = ops.log_softmax(policy(obs), -1).gather_elements(1, act.expand_dims(1))[:, 0]
    return -(logp * (ret - ret.mean())).mean()


runner = Runner(GridWorld(3), 9)
grad_fn = ms.value_and_grad(forward, None, opt.parameters)
updates = ck.data.resumable(range(10), epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([policy, opt], updates, runner=runner)
    manager.restore(state)
    for _ in updates:
        _, grads = grad_fn(*runner.rollout(6))
        opt(grads)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
