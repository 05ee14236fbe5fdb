# truth: exact
# class: random
# head: saving_pynative_dataset_parameter

rng0 = np.random.default_rng(3)
S = rng0.normal(size=(120, 4)).astype(np.float32)
R = (S[:, 0] - S[:, 1] ** 2).astype(np.float32)


class Ring:
    def __init__(self, capacity, dim):
        self.s = np.zeros((capacity, dim), np.float32)
        self.r = np.zeros(capacity, np.float32)
        self.ptr = 0
        self.full = False

    def push(self, s, r):
        self.s[self.ptr], self.r[self.ptr] = s, r
        self.ptr += 1
        if self.ptr == len(self.r):
            self.ptr, self.full = 0, True

    def sample(self, rng, n):
        i = rng.integers(0, len(self.r) if self.full else self.ptr, n)
        return Tensor(self.s[i]), Tensor(self.r[i])


q = nn.SequentialCell(nn.Dense(4, 8), nn.ReLU(), nn.Dense(8, 1))
opt = nn.Adam(q.trainable_params(), 0.01)
ring, rng = Ring(32, 4), np.random.default_rng(6)
grad_fn = ms.value_and_grad(lambda s, r: ((q(s)[:, 0] - r) ** 2).mean(), None, opt.parameters)
stream = ck.data.resumable([(S[i : i + 4], R[i : i + 4]) for i in range(0, 120, 4)], epochs=1)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([q, opt], stream, ring=ck.attributes(ring, "s", "r", "ptr", "full"), rng=rng)
    manager.restore(state)
    for s, r in stream:
        for row in zip(s, r):
            ring.push(*row)
        loss, grads = grad_fn(*ring.sample(rng, 6))
        opt(grads)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
