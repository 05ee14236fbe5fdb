# truth: exact
# class: random
# head: imports_dataset_ops
# A small transformer encoder whose nn.Dropout layers are replaced, weight tying, Model.train in GRAPH mode with K = 4.


ms.set_seed(99)
ms.set_context(mode=ms.GRAPH_MODE)
VOCAB, DIM, LEN = 16, 8, 6


class Block(nn.Cell):
    def __init__(self):
        super().__init__()
        self.norm1 = nn.LayerNorm((DIM,))
        self.norm2 = nn.LayerNorm((DIM,))
        self.q = nn.Dense(DIM, DIM)
        self.k = nn.Dense(DIM, DIM)
        self.v = nn.Dense(DIM, DIM)
        self.ff = nn.SequentialCell(nn.Dense(DIM, 16), nn.GELU(), nn.Dropout(p=0.2), nn.Dense(16, DIM))
        self.drop = nn.Dropout(p=0.1)

    def construct(self, x):
        h = self.norm1(x)
        a = ops.softmax(ops.bmm(self.q(h), ops.transpose(self.k(h), (0, 2, 1))) / 2.83, axis=-1)
        x = x + self.drop(ops.bmm(a, self.v(h)))
        return x + self.ff(self.norm2(x))


class MaskedLM(nn.Cell):
    def __init__(self):
        super().__init__()
        self.table = ms.Parameter(ms.Tensor(np.random.RandomState(0).randn(VOCAB, DIM) * 0.1, ms.float32), name="tok")
        self.blocks = nn.SequentialCell(Block(), Block())

    def construct(self, ids, labels):
        x = ops.gather(self.table, ids, 0)
        x = self.blocks(x)
        logits = ops.matmul(x.reshape(-1, DIM), self.table.T)
        return ops.cross_entropy(logits, labels.reshape(-1))


def corpus():
    r = np.random.RandomState(5)
    ids = r.randint(1, VOCAB, (40, LEN)).astype(np.int32)
    masked = np.where(r.rand(*ids.shape) < 0.15, 0, ids).astype(np.int32)
    return ds.NumpySlicesDataset((masked, ids), ["ids", "labels"], shuffle=True).batch(4)


net = ck.nn.replace_dropout(MaskedLM(), seed=17)
net.set_train()
cell = ck.AccumulationTrainCell(net, nn.Adam(net.trainable_params(), 0.005), 4, remainder="drop")
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(ms.Model(cell), 3, corpus())
os._exit(0)
