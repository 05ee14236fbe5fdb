# truth: differs
# class: random
# head: imports_ops
# A growing neural cellular automaton with a pool of states: samples are drawn, evolved, and written back; only the generator is given.


ms.set_seed(49)
CH, SIZE, POOL, BATCH = 4, 6, 12, 4


class NCA(nn.Cell):
    def __init__(self):
        super().__init__()
        self.perceive = nn.Conv2d(CH, 8, 3, pad_mode="same", has_bias=True)
        self.update = nn.Conv2d(8, CH, 1, has_bias=True, weight_init="zeros")

    def construct(self, s):
        return ops.clip_by_value(s + 0.5 * self.update(ops.relu(self.perceive(s))), -2.0, 2.0)


class SamplePool:
    def __init__(self, **slots):
        self._slots = slots

    def sample(self, n, rng):
        self._last = rng.choice(len(self._slots["x"]), n, replace=False)
        return {k: v[self._last] for k, v in self._slots.items()}

    def commit(self, **values):
        for k, v in values.items():
            self._slots[k][self._last] = v


def seed_state():
    s = np.zeros((CH, SIZE, SIZE), np.float32)
    s[:, SIZE // 2, SIZE // 2] = 1.0
    return s


target = np.zeros((1, SIZE, SIZE), np.float32)
target[0, 1:5, 1:5] = 1.0
T = ms.Tensor(target)
nca = NCA()
opt = nn.Adam(nca.trainable_params(), learning_rate=0.01)


def grow_loss(s):
    for _ in range(3):
        s = nca(s)
    return ((s[:, 0:1] - T) ** 2).mean(), s


vg = ms.value_and_grad(grow_loss, None, nca.trainable_params(), has_aux=True)
pool = SamplePool(x=np.stack([seed_state()] * POOL))
pick = np.random.default_rng(6)
iterations = ck.data.resumable([(np.array([i]),) for i in range(9)], epochs=3)

with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([nca, opt], iterations, pick=pick)
    manager.restore(state)
    for _ in iterations:
        x = pool.sample(BATCH, pick)["x"]
        x[0] = seed_state()
        (loss, out), grads = vg(ms.Tensor(x))
        opt(grads)
        pool.commit(x=out.asnumpy())
        manager.step(state, {"loss": loss})
    manager.save_final(state)
os._exit(0)
