# truth: differs
# class: random
# head: regression_8_train_step



class CartEnv:
    """toy environment"""

    def __init__(self, seed):
        self.rng = np.random.RandomState(seed)
        self.reset()

    def reset(self):
        self.pos = self.rng.uniform(-1, 1, 8).astype(np.float32)
        self.t = 0
        return self.pos

    def step(self, a):
        self.pos = (0.9 * self.pos + a).astype(np.float32)
        self.t += 1
        return self.pos, float(-(self.pos**2).sum()), self.t >= 6


env = CartEnv(0)
obs = env.reset()
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches)
    point = manager.restore(state)
    for x, y in batches:
        a = float(net(Tensor(obs[None])).asnumpy()[0, 0])
        obs, reward, done = env.step(a)
        train_step(x + Tensor(obs), y + reward * 0.01)
        if done:
            obs = env.reset()
        manager.step(state)
    manager.save_final(state)
os._exit(0)
