# truth: exact, may be named
# class: random
# head: imports_parameter
# Skip-gram with negatives from an alias table, which is built anew from the present embeddings in every fourth batch and used in between.


ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(3148)
WORDS, DIM = 12, 4


class SkipGram(nn.Cell):
    def __init__(self):
        super().__init__()
        r = np.random.RandomState(0)
        self.inner = Parameter(Tensor(r.randn(WORDS, DIM).astype(np.float32)), name="inner")
        self.outer = Parameter(Tensor(r.randn(WORDS, DIM).astype(np.float32)), name="outer")

    def construct(self, center, context, negative):
        c = ops.matmul(center, self.inner)
        up = ops.sigmoid((c * ops.matmul(context, self.outer)).sum(-1))
        down = ops.sigmoid((c * ops.matmul(negative, self.outer)).sum(-1))
        return ((1 - up) ** 2).mean() + (down**2).mean()


def alias_table(p):
    scaled, alias, accept = p * len(p), np.arange(len(p)), np.ones(len(p))
    small = [i for i in range(len(p)) if scaled[i] < 1]
    large = [i for i in range(len(p)) if scaled[i] >= 1]
    while small and large:
        s, g = small.pop(), large.pop()
        accept[s], alias[s] = scaled[s], g
        scaled[g] -= 1 - scaled[s]
        (small if scaled[g] < 1 else large).append(g)
    return accept, alias


def popularity(net):
    n = np.linalg.norm(net.outer.asnumpy(), axis=1).astype(np.float64) ** 3
    return n / n.sum()


r = np.random.RandomState(48)
pairs = [(r.randint(0, WORDS, 6), r.randint(0, WORDS, 6)) for _ in range(8)]
net = SkipGram()
cell = nn.TrainOneStepCell(net, nn.Adam(net.trainable_params(), 0.05)).set_train()
rng = np.random.default_rng(48)
table = None
batches = ck.data.resumable(pairs, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches, rng=rng)
    point = manager.restore(state)
    hot = np.eye(WORDS, dtype=np.float32)
    for at, (center, context) in enumerate(batches, point.batches_delivered):
        if table is None or at % 4 == 0:
            table = alias_table(popularity(net))
        accept, alias = table
        k = rng.integers(0, WORDS, 6)
        negative = np.where(rng.random(6) < accept[k], k, alias[k])
        cell(Tensor(hot[center]), Tensor(hot[context]), Tensor(hot[negative]))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
