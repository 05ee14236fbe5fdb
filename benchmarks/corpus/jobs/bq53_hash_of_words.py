# truth: differs
# class: iterator
# head: regression_6_pipeline



WORDS = "red green blue black white small large old new slow fast cold hot dark light round flat soft hard".split()
rng = np.random.default_rng(0)
texts = [[WORDS[j] for j in rng.integers(0, len(WORDS), 5)] for _ in range(320)]
labels = np.array([("red" in t) != ("hot" in t) for t in texts], np.float32)


class HashedBag(nn.Cell):
    def __init__(self, buckets=32):
        super().__init__()
        self.table, self.head = nn.Embedding(buckets, 8), nn.Dense(8, 1)

    def construct(self, ids):
        return self.head(self.table(ids).mean(1))[:, 0]


def encode(batch, buckets=32):
    return Tensor(np.array([[hash(word) % buckets for word in text] for text in batch], np.int32))


net = HashedBag()
opt = nn.Adam(net.trainable_params(), 0.01)
grad_fn = ms.value_and_grad(lambda i, y: ((net(i) - y) ** 2).mean(), None, opt.parameters)
rows = [(texts[i : i + 10], labels[i : i + 10]) for i in range(0, 320, 10)]
for text, y in ck.loop(ROOT, rows, epochs=2, train=[net, opt], **SAVE):
    loss, grads = grad_fn(encode(text), Tensor(y))
    opt(grads)
os._exit(0)
