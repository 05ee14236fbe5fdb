# truth: differs
# class: attribute
# head: imports_ops
# A neural language model is interpolated with an online n-gram model (dict of dicts of counts with Jelinek-Mercer smoothing) that grows as text is read.


ms.set_seed(329)
TEXT = "the cat sat on the mat and the dog sat on the log while the cat and the dog met at the mill again and again "
VOCAB = {ch: k for k, ch in enumerate(sorted(set(TEXT)))}
V = len(VOCAB)


class NGramModel:
    def __init__(self, order=2, lam=0.7):
        self.order, self.lam = order, lam
        self.counts = {n: {} for n in range(order + 1)}

    def update(self, ids):
        for t in range(len(ids)):
            for n in range(self.order + 1):
                if t >= n:
                    context = tuple(ids[t - n : t])
                    table = self.counts[n].setdefault(context, {})
                    table[ids[t]] = table.get(ids[t], 0) + 1

    def probs(self, context):
        p = np.full(V, 1.0 / V)
        for n in range(self.order + 1):
            table = self.counts[n].get(tuple(context[len(context) - n :]))
            if table:
                total = sum(table.values())
                ml = np.zeros(V)
                for w, c in table.items():
                    ml[w] = c / total
                p = self.lam * ml + (1 - self.lam) * p
        return p


ids = [VOCAB[ch] for ch in TEXT]
chunks = [(np.array(ids[k * 13 : k * 13 + 13], np.int32),) for k in range(8)]
net = nn.SequentialCell(nn.Embedding(V, 6), nn.Flatten(), nn.Dense(12, V))
opt = nn.Adam(net.trainable_params(), 0.02)
ngram = NGramModel()


def forward(x, target, prior):
    mixed = 0.6 * ops.softmax(net(x), -1) + 0.4 * prior
    return ((mixed - target) ** 2).sum(-1).mean()


vg = ms.value_and_grad(forward, None, net.trainable_params())
batches = ck.data.resumable(chunks, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    for (chunk,) in batches:
        x = np.stack([chunk[:-2], chunk[1:-1]], 1)
        prior = np.stack([ngram.probs([int(a), int(b)]) for a, b in x]).astype(np.float32)
        target = np.eye(V, dtype=np.float32)[chunk[2:]]
        loss, grads = vg(ms.Tensor(x), ms.Tensor(target), ms.Tensor(prior))
        opt(grads)
        ngram.update([int(c) for c in chunk])
        manager.step(state)
    manager.save_final(state)
os._exit(0)
