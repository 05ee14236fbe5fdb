# truth: exact
# class: outside
# head: pynative
# SARSA on a small grid: where the walker is, its last action and the return so far are in the environment's state_dict; the generator is given by name; epsilon follows from the number of the step.

ms.set_seed(3524)
SIDE, STEPS, GAMMA = 4, 40, 0.9
MOVES = [(0, 1), (1, 0), (0, -1), (-1, 0)]


class Walk:
    """an episode that goes on: place, action to come, return"""

    def __init__(self):
        self.row = self.column = self.action = 0
        self.gain = 0.0
        self.gains = []

    def features(self):
        out = np.zeros(2 * SIDE, np.float32)
        out[self.row] = out[SIDE + self.column] = 1
        return out

    def move(self):
        down, right = MOVES[self.action]
        self.row = min(max(self.row + down, 0), SIDE - 1)
        self.column = min(max(self.column + right, 0), SIDE - 1)
        done = self.row == self.column == SIDE - 1
        reward = 1.0 if done else -0.04
        self.gain += reward
        return reward, done

    def restart(self):
        self.gains.append(self.gain)
        self.row, self.column, self.gain = 0, 0, 0.0

    def state_dict(self):
        return {
            "row": self.row,
            "column": self.column,
            "action": self.action,
            "gain": self.gain,
            "gains": list(self.gains),
        }

    def load_state_dict(self, state):
        self.row, self.column, self.action = state["row"], state["column"], state["action"]
        self.gain, self.gains = state["gain"], list(state["gains"])


q = nn.SequentialCell(nn.Dense(2 * SIDE, 12), nn.Tanh(), nn.Dense(12, 4))
optimizer = nn.Momentum(q.trainable_params(), 0.05, 0.5)
rng = np.random.default_rng(3524)
walk = Walk()


def td_loss(seen, action, target):
    return (((q(seen) * action).sum(-1) - target) ** 2).mean()


gradients = ms.value_and_grad(td_loss, None, q.trainable_params())


def choose(seen, epsilon):
    if rng.random() < epsilon:
        return int(rng.integers(4))
    return int(q(ms.Tensor(seen[None])).asnumpy().argmax())


with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([q, optimizer], walk=walk, rng=rng)
    point = manager.restore(state)
    for number in range(point.batches_delivered, STEPS):
        epsilon = max(0.1, 0.9 - number / 40)
        seen, actions, targets = [], [], []
        for _ in range(4):
            seen.append(walk.features())
            actions.append(np.eye(4, dtype=np.float32)[walk.action])
            reward, done = walk.move()
            after = walk.features()
            if done:
                walk.restart()
            walk.action = choose(walk.features(), epsilon)
            value = q(ms.Tensor(after[None])).asnumpy()[0, walk.action]
            targets.append(reward if done else reward + GAMMA * value)
        _, grads = gradients(
            ms.Tensor(np.stack(seen)), ms.Tensor(np.stack(actions)), ms.Tensor(np.array(targets, np.float32))
        )
        optimizer(grads)
        state.count_delivered()
        manager.step(state)
    manager.save_final(state)
print("episodes", len(walk.gains), "mean return", np.mean(walk.gains) if walk.gains else None)
os._exit(0)
