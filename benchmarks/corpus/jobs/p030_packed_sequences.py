# truth: exact
# class: data
# head: imports_dataset_ops
# Documents are packed into rows of equal length; what is left over begins the next row.


ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(130)


class PackedDocuments:
    def __init__(self, documents, length, rows):
        self.documents, self.length, self.rows = documents, length, rows

    def __iter__(self):
        left, given = np.zeros(0, np.int32), 0
        for document in self.documents:
            left = np.concatenate([left, document, [1]]).astype(np.int32)
            while len(left) > self.length and given < self.rows:
                row, left = left[: self.length + 1], left[self.length :]
                given += 1
                yield row[:-1], row[1:]

    def __len__(self):
        return self.rows


class LanguageLoss(nn.Cell):
    def __init__(self, vocabulary, width):
        super().__init__()
        self.embed, self.mix = nn.Embedding(vocabulary, width), nn.Dense(2 * width, width)
        self.head = nn.Dense(width, vocabulary)
        self.ce = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")

    def construct(self, tokens, target):
        e = self.embed(tokens)
        past = ops.concat((ops.zeros_like(e[:, :1]), e[:, :-1]), 1)
        h = ops.tanh(self.mix(ops.concat((e, past), -1)))
        return self.ce(self.head(h).reshape(-1, 24), target.reshape(-1))


r = np.random.RandomState(30)
documents = [2 + (np.arange(r.randint(9, 40)) * r.randint(1, 5) + r.randint(0, 22)) % 22 for _ in range(40)]
train = ds.GeneratorDataset(
    PackedDocuments(documents, 12, 72), ["tokens", "target"], shuffle=False, num_parallel_workers=1
).batch(8)
loss = LanguageLoss(24, 12)
step = nn.TrainOneStepCell(loss, nn.Adam(loss.trainable_params(), 1e-2))

ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(ms.Model(step), 4, train)
os._exit(0)
