# truth: exact
# class: data
# head: imports_random
# Bag-of-words regression on sentences in buckets of equal length; the vocabulary is a set that is sorted once.


ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(123)

NOUNS = "cat dog tree house river cloud stone bird road lamp".split()
VERBS = "sees takes makes finds holds leaves".split()
maker = random.Random(23)
sentences = []
for _ in range(96):
    words = [maker.choice(NOUNS), maker.choice(VERBS), maker.choice(NOUNS)] + maker.choices(
        NOUNS, k=maker.randint(0, 3)
    )
    sentences.append(words)
score = [sum(len(w) for w in s) / len(s) - 4 for s in sentences]

vocabulary = {word: i for i, word in enumerate(sorted({w for s in sentences for w in s}))}
buckets = {}
for words, value in zip(sentences, score):
    buckets.setdefault(len(words), []).append(([vocabulary[w] for w in words], value))
order = []
for length in sorted(buckets):
    rows = buckets[length]
    for at in range(0, len(rows), 8):
        ids = np.array([ids for ids, _ in rows[at : at + 8]], np.int32)
        order.append((ids, np.array([[v] for _, v in rows[at : at + 8]], np.float32)))
maker.shuffle(order)


class Bag(nn.Cell):
    def __init__(self, size):
        super().__init__()
        self.embed, self.head = nn.Embedding(size, 8), nn.Dense(8, 1)

    def construct(self, ids):
        return self.head(self.embed(ids).mean(1))


net = Bag(len(vocabulary))
optimizer = nn.Adam(net.trainable_params(), 2e-2)
grad_fn = ms.value_and_grad(lambda ids, y: ((net(ids) - y) ** 2).mean(), None, net.trainable_params())
batches = ck.data.resumable(order, epochs=4)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, optimizer], batches)
    manager.restore(state)
    for ids, y in batches:
        loss, grads = grad_fn(ms.Tensor(ids), ms.Tensor(y))
        optimizer(grads)
        manager.step(state, {"loss": loss})
    manager.save_final(state)
os._exit(0)
