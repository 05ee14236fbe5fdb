# truth: differs
# class: attribute
# head: pynative_ops
# Bootstrapped DQN: one of five heads acts for a whole episode and is drawn when there is none; environment and generator are given by name, the acting head is not.

ms.set_seed(4346)
CELLS, HEADS, STEPS = 6, 5, 6


class Corridor:
    """the right end pays, the left end pays a little"""

    def __init__(self):
        self.at, self.age = 1, 0

    def observe(self):
        return np.eye(CELLS, dtype=np.float32)[self.at]

    def act(self, right):
        self.at = min(CELLS - 1, self.at + 1) if right else max(0, self.at - 1)
        self.age += 1
        reward = 1.0 if self.at == CELLS - 1 else 0.2 if self.at == 0 else 0.0
        done = self.age == 11
        if done:
            self.at, self.age = 1, 0
        return reward, done


class Agent:
    def __init__(self, net, rng):
        self.net, self.rng = net, rng
        self.head = None

    def choose(self, observation):
        if self.head is None:
            self.head = int(self.rng.integers(HEADS))
        values = self.net(ms.Tensor(observation[None])).asnumpy().reshape(HEADS, 2)
        return int(values[self.head].argmax())

    def episode_over(self):
        self.head = None


net = nn.SequentialCell(nn.Dense(CELLS, 12), nn.Tanh(), nn.Dense(12, 2 * HEADS))
opt = nn.Adam(net.trainable_params(), 0.02)
rng = np.random.default_rng(46)
corridor, agent = Corridor(), Agent(net, rng)


def td_loss(now, chosen, target, mask):
    values = (net(now).reshape(-1, HEADS, 2) * chosen).sum(-1)
    return (((values - target) ** 2) * mask).mean()


gradients = ms.value_and_grad(td_loss, None, net.trainable_params())
rounds = [(np.array([i]),) for i in range(8)]
batches = ck.data.resumable(rounds, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches, corridor=ck.attributes(corridor, "at", "age"), rng=rng)
    manager.restore(state)
    for _ in batches:
        seen, chosen, targets = [], [], []
        for _ in range(STEPS):
            observation = corridor.observe()
            action = agent.choose(observation)
            reward, done = corridor.act(bool(action))
            after = net(ms.Tensor(corridor.observe()[None])).asnumpy().reshape(HEADS, 2).max(1)
            seen.append(observation)
            chosen.append(np.eye(2, dtype=np.float32)[action].reshape(1, 1, 2))
            targets.append(reward + 0.9 * after * (not done))
            if done:
                agent.episode_over()
        mask = (rng.random((STEPS, HEADS)) < 0.7).astype(np.float32)
        columns = np.stack(seen), np.concatenate(chosen), np.array(targets, np.float32), mask
        loss, grads = gradients(*map(ms.Tensor, columns))
        opt(grads)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
