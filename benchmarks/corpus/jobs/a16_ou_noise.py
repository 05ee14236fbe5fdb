# truth: differs
# class: attribute
# head: regression_8_train_step



class OUNoise:
    def __init__(self, size, mu=0.0, theta=0.15, sigma=0.2):
        self.mu, self.theta, self.sigma = mu, theta, sigma
        self.state = np.ones(size) * mu

    def __call__(self):
        self.state = self.state + self.theta * (self.mu - self.state) + self.sigma * np.random.randn(*self.state.shape)
        return self.state.astype(np.float32)


noise = OUNoise((8, 1))
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches)
    point = manager.restore(state)
    for x, y in batches:
        train_step(x, y + Tensor(noise()))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
