# truth: differs
# class: attribute
# head: imports_deque
# DQN on a small corridor: the environment and the generator are given by name, but the replay buffer is a deque of the agent that fills again after a start.


ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(3523)
CELLS, STEPS, BATCH, GAMMA = 7, 40, 8, 0.9


class Corridor:
    """walk to the right end; each step costs a little"""

    def __init__(self):
        self.place = self.time = 0

    def observation(self):
        return np.eye(CELLS, dtype=np.float32)[self.place]

    def move(self, action):
        self.place = min(max(self.place + (1 if action else -1), 0), CELLS - 1)
        self.time += 1
        done = self.place == CELLS - 1 or self.time == 15
        reward = 1.0 if self.place == CELLS - 1 else -0.05
        if done:
            self.place = self.time = 0
        return reward, done

    def state_dict(self):
        return {"place": self.place, "time": self.time}

    def load_state_dict(self, state):
        self.place, self.time = state["place"], state["time"]


class Agent:
    def __init__(self, rng, capacity=64):
        self.rng = rng
        self.q = nn.SequentialCell(nn.Dense(CELLS, 12), nn.ReLU(), nn.Dense(12, 2))
        self.optimizer = nn.Adam(self.q.trainable_params(), 0.01)
        self.memory = deque(maxlen=capacity)
        self.gradients = ms.value_and_grad(self.loss, None, self.q.trainable_params())

    def loss(self, seen, action, target):
        return (((self.q(seen) * action).sum(-1) - target) ** 2).mean()

    def act(self, seen, epsilon):
        if self.rng.random() < epsilon:
            return int(self.rng.integers(2))
        return int(self.q(ms.Tensor(seen[None])).asnumpy().argmax())

    def learn(self):
        picked = [self.memory[i] for i in self.rng.integers(len(self.memory), size=BATCH)]
        seen, action, reward, after, done = (np.array(column) for column in zip(*picked))
        best = self.q(ms.Tensor(after)).asnumpy().max(1)
        target = (reward + GAMMA * best * (1 - done)).astype(np.float32)
        _, grads = self.gradients(ms.Tensor(seen), ms.Tensor(np.eye(2, dtype=np.float32)[action]), ms.Tensor(target))
        self.optimizer(grads)


rng = np.random.default_rng(3523)
corridor, agent = Corridor(), Agent(rng)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([agent.q, agent.optimizer], corridor=corridor, rng=rng)
    point = manager.restore(state)
    for number in range(point.batches_delivered, STEPS):
        for _ in range(3):
            seen = corridor.observation()
            action = agent.act(seen, epsilon=max(0.2, 1 - number / 25))
            reward, done = corridor.move(action)
            agent.memory.append((seen, action, reward, corridor.observation(), float(done)))
        agent.learn()
        state.count_delivered()
        manager.step(state)
    manager.save_final(state)
os._exit(0)
