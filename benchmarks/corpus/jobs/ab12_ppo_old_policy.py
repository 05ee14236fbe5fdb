# truth: differs
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

old = nn.SequentialCell(nn.Dense(3, 12), nn.Tanh(), nn.Dense(12, 3))
old.update_parameters_name("old.")
opt = nn.Adam(policy.trainable_params(), 0.02)


def sync():
    for a, b in zip(old.get_parameters(), policy.get_parameters()):
        ops.assign(a, b)


def collect(update):
    env, rng = GridWorld(update), np.random.default_rng(1000 + update)
    obs, rows = env.reset(), []
    for _ in range(8):
        p = ops.softmax(old(Tensor(obs[None])), -1).asnumpy()[0].astype(np.float64)
        a = int(rng.choice(3, p=p / p.sum()))
        nxt, r, done = env.act(a)
        rows.append((obs, a, r, p[a]))
        obs = nxt
    o, a, r, p = zip(*rows)
    adv = np.array(r, np.float32)
    return Tensor(np.array(o)), Tensor(np.array(a, np.int32)), Tensor(adv - adv.mean()), Tensor(np.array(p, np.float32))


def forward(obs, act, adv, p_old):
    p = ops.softmax(policy(obs), -1).gather_elements(1, act.expand_dims(1))[:, 0]
    ratio = p / p_old
    return -ops.minimum(ratio * adv, ops.clamp(ratio, 0.8, 1.2) * adv).mean()


grad_fn = ms.value_and_grad(forward, None, opt.parameters)
sync()
updates = ck.data.resumable(list(range(10)), epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([policy, opt], updates)
    point = manager.restore(state)
    for n, _ in enumerate(updates, point.batches_delivered):
        if n % 4 == 0:
            sync()
        _, grads = grad_fn(*collect(n))
        opt(grads)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
