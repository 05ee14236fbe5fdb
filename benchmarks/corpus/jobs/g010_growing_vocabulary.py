# truth: differs
# class: attribute
# head: imports_ops
# Words get their number when they are first seen in training (a dict that grows); the embedding table is stored, the dict is not.


ms.set_seed(2)

# 小语料：情感分类，每句四个词
CORPUS = [
    ("good film very nice", 1),
    ("bad film so dull", 0),
    ("nice plot good cast", 1),
    ("dull cast weak plot", 0),
    ("great fun good music", 1),
    ("weak music bad sound", 0),
    ("very great fine acting", 1),
    ("so bad poor acting", 0),
    ("fine story nice end", 1),
    ("poor story dull end", 0),
    ("great end happy crowd", 1),
    ("weak end sad crowd", 0),
    ("happy cast fun film", 1),
    ("sad film poor plot", 0),
    ("fine music great plot", 1),
    ("dull sound bad story", 0),
]


class Vocab(dict):
    """词表：第一次遇到的词得到下一个编号"""

    def encode(self, text):
        return [self.setdefault(word, len(self)) for word in text.split()]


class Classifier(nn.Cell):
    def __init__(self, size=48, dim=8):
        super().__init__()
        self.embedding = nn.Embedding(size, dim)
        self.fc = nn.Dense(dim, 2)

    def construct(self, ids, label):
        return ops.cross_entropy(self.fc(self.embedding(ids).mean(1)), label)


vocab = Vocab()
net = Classifier()
cell = ck.AccumulationTrainCell(net, nn.Adam(net.trainable_params(), learning_rate=0.05), 2)
cell.set_train()

loader = [(np.array([i, i + 1], np.int32),) for i in range(0, 16, 2)]
batches = ck.data.resumable(loader, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches)
    manager.restore(state)
    for (rows,) in batches:
        texts = [CORPUS[r] for r in rows]
        ids = ms.Tensor(np.array([vocab.encode(t) for t, _ in texts], np.int32))
        label = ms.Tensor(np.array([l for _, l in texts], np.int32))
        loss = cell(ids, label)
        manager.step(state)
        print("loss", float(loss.asnumpy()), "words", len(vocab))
    manager.save_final(state)
os._exit(0)
