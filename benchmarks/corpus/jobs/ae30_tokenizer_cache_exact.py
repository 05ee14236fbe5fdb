# truth: exact, may be named
# class: attribute
# head: saving_pynative_dataset_parameter

TEXTS = ["the cat sat on the mat", "a dog ran to the cat", "the mat is on a log", "to be or not to be"] * 6


class Tokenizer:
    def __init__(self, texts):
        self.vocab = {w: i + 1 for i, w in enumerate(sorted({w for t in texts for w in t.split()}))}
        self.cache = {}

    def encode(self, text, width=7):
        if text not in self.cache:
            ids = [self.vocab[w] for w in text.split()]
            self.cache[text] = np.pad(np.array(ids, np.int32), (0, width - len(ids)))
        return self.cache[text]


tokenizer = Tokenizer(TEXTS)


class LM(nn.Cell):
    def __init__(self, n):
        super().__init__()
        self.emb, self.out = nn.Embedding(n, 8), nn.Dense(8, n)

    def construct(self, t):
        return ops.cross_entropy(self.out(self.emb(t[:, :-1])).reshape(-1, self.out.out_channels), t[:, 1:].reshape(-1))


net = LM(len(tokenizer.vocab) + 1)
opt = nn.Adam(net.trainable_params(), 0.01)
grad_fn = ms.value_and_grad(net, None, opt.parameters)
batches = ck.data.resumable([TEXTS[i : i + 2] for i in range(0, 24, 2)], epochs=2)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    for texts in batches:
        tokens = Tensor(np.stack([tokenizer.encode(t) for t in texts]))
        loss, grads = grad_fn(tokens)
        opt(grads)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
