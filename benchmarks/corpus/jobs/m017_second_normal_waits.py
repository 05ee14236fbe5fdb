# truth: differs
# class: random
# head: pynative
# A named noise object stores key and position of its RandomState, as a tutorial did, but not the second normal number that waits inside for the next call.

ms.set_seed(4317)


class Noise:
    def __init__(self, seed, size):
        self.rng = np.random.RandomState(seed)
        self.size = size
        self.tilt = float(self.rng.randn())  # drawn once, the same at each start

    def __call__(self, x):
        noise = self.rng.randn(*x.shape)
        return (x + self.size * (noise + 0.1 * self.tilt)).astype(np.float32)

    def state_dict(self):
        _, key, pos, *_ = self.rng.get_state()
        return {"key": key.copy(), "pos": int(pos)}

    def load_state_dict(self, state):
        self.rng.set_state(("MT19937", np.asarray(state["key"], np.uint32), state["pos"]))


r = np.random.RandomState(17)
rows = []
for _ in range(8):
    x = r.randn(6, 4).astype(np.float32)
    rows.append((x, ms.Tensor((x[:, :1] * x[:, 1:2]).astype(np.float32))))
net = nn.SequentialCell(nn.Dense(4, 8), nn.Tanh(), nn.Dense(8, 1))
mse = nn.MSELoss()
opt = nn.Momentum(net.trainable_params(), 0.03, 0.9)
gradients = ms.value_and_grad(lambda x, y: mse(net(x), y), None, net.trainable_params())
noise = Noise(seed=417, size=0.2)

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches, noise=noise)
    manager.restore(state)
    for x, y in batches:
        loss, grads = gradients(ms.Tensor(noise(x)), y)
        opt(grads)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
