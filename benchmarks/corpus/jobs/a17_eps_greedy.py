# truth: differs
# class: attribute
# head: regression_8_train_step



class Agent:
    def __init__(self):
        self.eps, self.eps_min, self.eps_decay = 1.0, 0.05, 0.85
        self.memory = collections.deque(maxlen=5)

    def act(self, x):
        if random.random() < self.eps:
            return Tensor(np.random.randn(8, 1).astype(np.float32))
        return net(x)

    def learn(self):
        for x, y in random.sample(list(self.memory), min(2, len(self.memory))):
            train_step(x, y)
        self.eps = max(self.eps_min, self.eps * self.eps_decay)


agent = Agent()
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches)
    point = manager.restore(state)
    for x, y in batches:
        a = agent.act(x)
        agent.memory.append((x, y + 0.1 * ops.stop_gradient(a)))
        agent.learn()
        manager.step(state)
    manager.save_final(state)
os._exit(0)
