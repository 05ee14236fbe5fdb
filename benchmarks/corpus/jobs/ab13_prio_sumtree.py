# truth: differs
# class: attribute
# head: saving_pynative_dataset_parameter

rng0 = np.random.default_rng(3)
S = rng0.normal(size=(120, 4)).astype(np.float32)
R = (S[:, 0] - S[:, 1] ** 2).astype(np.float32)


class SumTree:
    def __init__(self, capacity):
        self.capacity = capacity
        self.tree = np.zeros(2 * capacity)
        self.cursor = 0
        self.size = 0

    def set(self, leaf, p):
        i = leaf + self.capacity
        self.tree[i] = p
        while i > 1:
            i //= 2
            self.tree[i] = self.tree[2 * i] + self.tree[2 * i + 1]

    def add(self, p):
        self.set(self.cursor, p)
        self.cursor = (self.cursor + 1) % self.capacity
        self.size = min(self.size + 1, self.capacity)

    def find(self, v):
        i = 1
        while i < self.capacity:
            i *= 2
            if v > self.tree[i]:
                v -= self.tree[i]
                i += 1
        return i - self.capacity


class PrioritizedReplay:
    def __init__(self, capacity, seed):
        self.tree = SumTree(capacity)
        self.items = [None] * capacity
        self.rng = np.random.default_rng(seed)

    def push(self, item):
        self.items[self.tree.cursor] = item
        self.tree.add(1.0)

    def sample(self, n):
        leaves = [self.tree.find(self.rng.uniform(0, self.tree.tree[1])) for _ in range(n)]
        return leaves, [self.items[l] for l in leaves]

    def update(self, leaves, errors):
        for l, e in zip(leaves, errors):
            self.tree.set(l, float(abs(e)) + 0.01)


q = nn.SequentialCell(nn.Dense(4, 8), nn.ReLU(), nn.Dense(8, 1))
opt = nn.Adam(q.trainable_params(), 0.01)
memory = PrioritizedReplay(32, 4)


def td(s, r):
    e = q(s)[:, 0] - r
    return (e * e).mean(), e


grad_fn = ms.value_and_grad(td, None, opt.parameters, has_aux=True)
stream = ck.data.resumable([(S[i : i + 4], R[i : i + 4]) for i in range(0, 120, 4)], epochs=1)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([q, opt], stream)
    manager.restore(state)
    for s, r in stream:
        for row in zip(s, r):
            memory.push(row)
        leaves, items = memory.sample(6)
        ss, rr = zip(*items)
        (loss, err), grads = grad_fn(Tensor(np.array(ss)), Tensor(np.array(rr)))
        opt(grads)
        memory.update(leaves, err.asnumpy())
        manager.step(state)
    manager.save_final(state)
os._exit(0)
