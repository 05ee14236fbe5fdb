# truth: differs
# class: attribute
# head: regression_8_arrays

rows = [(Tensor(X[i * 8 : i * 8 + 8]), Tensor(Y[i * 8 : i * 8 + 8])) for i in range(8)]
loss_fn = nn.MSELoss()
emb = nn.Embedding(32, 4)
fc = nn.Dense(4, 1)
opt = nn.Adam(list(emb.trainable_params()) + list(fc.trainable_params()), 0.01)
words = "the cat sat on a mat and then it ran off to see dogs who did bark".split()


class Vocab(dict):
    def __missing__(self, w):
        self[w] = len(self)
        return self[w]


vocab = Vocab()


def fwd(ids, y):
    return loss_fn(fc(emb(ids)), y)


gf = ms.value_and_grad(fwd, None, opt.parameters)
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([emb, fc, opt], batches)
    point = manager.restore(state)
    for i, (x, y) in enumerate(batches, point.batches_delivered):
        ids = Tensor([vocab[words[(i * 3 + j) % len(words)]] for j in range(8)], ms.int32)
        l, gr = gf(ids, y)
        opt(gr)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
