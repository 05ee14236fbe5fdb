# truth: exact
# class: random
# head: imports_tensor_ops


ROOT = os.environ["ROOT"]
ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(38)


class GridWorld:
    def __init__(self, size=5, seed=0):
        self.size, self.rng = size, np.random.default_rng(seed)
        self.reset()

    def reset(self):
        self.at, self.goal, self.t = self.rng.integers(0, self.size, 2), self.rng.integers(0, self.size, 2), 0
        return self.observe()

    def observe(self):
        return np.concatenate([self.at, self.goal]).astype(np.float32) / self.size

    def step(self, action):
        move = [(0, 1), (0, -1), (1, 0), (-1, 0)][action]
        self.at = np.clip(self.at + move, 0, self.size - 1)
        self.t += 1
        done = bool((self.at == self.goal).all())
        return self.observe(), 1.0 if done else -0.05, done or self.t == 20

    def state_dict(self):
        return {"at": self.at, "goal": self.goal, "t": self.t, "rng": self.rng.bit_generator.state}

    def load_state_dict(self, state):
        self.at, self.goal, self.t = state["at"], state["goal"], state["t"]
        self.rng.bit_generator.state = state["rng"]


class ReplayBuffer:
    def __init__(self, capacity=128):
        self.rows, self.capacity, self.next = np.zeros((capacity, 11), np.float32), capacity, 0

    def add(self, obs, action, reward, following, done):
        self.rows[self.next % self.capacity] = [*obs, action, reward, *following, done]
        self.next += 1

    def sample(self, rng, n):
        r = self.rows[rng.integers(0, min(self.next, self.capacity), n)]
        return (Tensor(a) for a in (r[:, :4], r[:, 4].astype(np.int32), r[:, 5], r[:, 6:10], r[:, 10]))

    def state_dict(self):
        return {"rows": self.rows, "next": self.next}

    def load_state_dict(self, state):
        self.rows[:] = state["rows"]
        self.next = state["next"]


def q_network(prefix):
    net = nn.SequentialCell(nn.Dense(4, 24), nn.ReLU(), nn.Dense(24, 4))
    net.update_parameters_name(prefix)
    return net


q, target = q_network("q."), q_network("target.")
ms.load_param_into_net(target, {f"target.{p.name[2:]}": p for p in q.get_parameters()})
opt = nn.Adam(q.trainable_params(), 0.005)


def forward(obs, action, goal):
    chosen = (q(obs) * ops.one_hot(action, 4, Tensor(1.0), Tensor(0.0))).sum(-1)
    return ((chosen - goal) ** 2).mean()


grad_fn = ms.value_and_grad(forward, None, opt.parameters)


@ms.jit
def learn(obs, action, goal):
    loss, grads = grad_fn(obs, action, goal)
    opt(grads)
    return loss


env, buffer, rng = GridWorld(), ReplayBuffer(), np.random.default_rng(5)
run = ck.loop(
    ROOT,
    range(40),
    epochs=1,
    train=[q, target, opt],
    stateful={"env": env, "buffer": buffer, "rng": rng},
    save=ck.SaveEvery(micro_steps=5),
    saving=ck.Saving(when_busy="wait"),
)
for _ in run:
    step = run.step
    for _ in range(4):
        obs = env.observe()
        epsilon = max(0.1, 1 - step / 30)
        greedy = int(q(Tensor(obs[None])).asnumpy().argmax())
        action = int(rng.integers(4)) if rng.random() < epsilon else greedy
        following, reward, done = env.step(action)
        buffer.add(obs, action, reward, following, done)
        if done:
            env.reset()
    obs, action, reward, following, done = buffer.sample(rng, 16)
    goal = reward + 0.9 * (1 - done) * ops.amax(target(following), -1)
    loss = learn(obs, action, goal)
    if step % 8 == 7:
        for a, b in zip(target.get_parameters(), q.get_parameters()):
            ops.assign(a, b)
os._exit(0)
