# truth: exact
# class: data
# head: imports_dataset_ops
# Padded sequences with normalize="weights", an odd number of batches per epoch with remainder="carry", Model.train.


ms.set_seed(61)
ms.set_context(mode=ms.GRAPH_MODE)
MAXLEN, FEAT = 7, 4


def pad(seq):
    out = np.zeros((MAXLEN, FEAT), np.float32)
    out[: len(seq)] = seq
    mask = (np.arange(MAXLEN) < len(seq)).astype(np.float32)
    return out, mask


class Sequences:
    """随机长度的序列，目标是累计和。"""

    def __init__(self, n=45):
        r = np.random.RandomState(61)
        self.seqs = [r.randn(r.randint(2, MAXLEN + 1), FEAT).astype(np.float32) * 0.5 for _ in range(n)]

    def __len__(self):
        return len(self.seqs)

    def __getitem__(self, i):
        x, m = pad(self.seqs[i])
        y, _ = pad(np.cumsum(self.seqs[i], 0))
        return x, y, m


class SumLoss(nn.Cell):
    def __init__(self):
        super().__init__()
        self.rnn = nn.RNN(FEAT, 8, batch_first=True)
        self.head = nn.Dense(8, FEAT)

    def construct(self, x, y, mask):
        h, _ = self.rnn(x)
        err = ops.square(self.head(h) - y).mean(-1)
        return (err * mask).sum(), mask.sum()


data = ds.GeneratorDataset(Sequences(), ["x", "y", "mask"], shuffle=True, num_parallel_workers=1).batch(5)
net = SumLoss()
cell = ck.AccumulationTrainCell(
    net,
    nn.Adam(net.trainable_params(), learning_rate=0.01),
    accumulation_steps=4,
    normalize="weights",
    clip_norm=2.0,
    remainder="carry",
)
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(ms.Model(cell), 3, data)
os._exit(0)
