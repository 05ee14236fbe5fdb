# truth: exact
# class: outside
# head: imports_ops
# Actor-critic on a little cart environment that goes on from batch to batch; the environment has state_dict and is given by name.


ms.set_seed(36)


class VectorCart:
    """Several carts at once: push left or right, stay near the centre."""

    def __init__(self, n, seed):
        self.rng = np.random.default_rng(seed)
        self.obs = self.rng.uniform(-1, 1, (n, 2)).astype(np.float32)
        self.age = np.zeros(n, np.int64)

    def step(self, actions):
        pos, vel = self.obs[:, 0], self.obs[:, 1]
        vel = 0.9 * vel + 0.2 * (2 * actions - 1) + 0.02 * self.rng.standard_normal(len(pos))
        pos = pos + 0.3 * vel
        reward = (1 - np.abs(pos)).astype(np.float32)
        self.age = self.age + 1
        done = (np.abs(pos) > 2) | (self.age >= 9)
        fresh = self.rng.uniform(-1, 1, (len(pos), 2))
        self.obs = np.where(done[:, None], fresh, np.stack([pos, vel], 1)).astype(np.float32)
        self.age = np.where(done, 0, self.age)
        return reward, done

    def state_dict(self):
        return {"obs": self.obs, "age": self.age, "rng": self.rng.bit_generator.state}

    def load_state_dict(self, d):
        self.obs, self.age = np.array(d["obs"]), np.array(d["age"])
        self.rng.bit_generator.state = d["rng"]


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.body, self.pi, self.v = nn.Dense(2, 8), nn.Dense(8, 2), nn.Dense(8, 1)

    def construct(self, obs):
        h = ops.tanh(self.body(obs))
        return ops.log_softmax(self.pi(h), 1), self.v(h)


net = Net()
opt = nn.Adam(net.trainable_params(), learning_rate=0.02)


def loss_fn(obs, mask, reward, next_value):
    logp, v = net(obs)
    target = reward + 0.9 * next_value
    adv = ops.stop_gradient(target - v)
    return (-(logp * mask).sum(1).reshape((-1, 1)) * adv + 0.5 * (v - target) ** 2).mean()


vg = ms.value_and_grad(loss_fn, None, net.trainable_params())
env = VectorCart(6, seed=1)
choice = np.random.default_rng(2)
ticks = ck.data.resumable([(np.array([i]),) for i in range(10)], epochs=3)

with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], ticks, env=env, choice=choice)
    manager.restore(state)
    for _ in ticks:
        obs = env.obs
        logp, _ = net(ms.Tensor(obs))
        actions = (choice.random(6) < np.exp(logp.asnumpy()[:, 1])).astype(np.int64)
        reward, done = env.step(actions)
        _, next_v = net(ms.Tensor(env.obs))
        next_value = np.where(done[:, None], 0, next_v.asnumpy()).astype(np.float32)
        mask = np.eye(2, dtype=np.float32)[actions]
        loss, grads = vg(ms.Tensor(obs), ms.Tensor(mask), ms.Tensor(reward[:, None]), ms.Tensor(next_value))
        opt(grads)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
