# truth: exact
# class: data
# head: saving_pynative_dataset_parameter

rng0 = np.random.default_rng(5)
TEXTS = [rng0.integers(1, 9, size=int(n)).astype(np.int32) for n in rng0.integers(2, 9, size=48)]


class BucketLoader:
    """Batches of equal length class; what does not fill a batch waits in its bucket."""

    def __init__(self, texts, size):
        self.texts, self.size = texts, size

    def __len__(self):
        return 12

    def __iter__(self):
        buckets, out = {}, []
        for t in sorted(self.texts, key=len):
            buckets.setdefault(len(t) // 3, []).append(t)
        for texts in buckets.values():
            for i in range(0, len(texts), self.size):
                out.append(texts[i : i + self.size])
        for group in out[:12]:
            width = max(map(len, group))
            yield Tensor(np.stack([np.pad(t, (0, width - len(t))) for t in group]))


class Bag(nn.Cell):
    def __init__(self):
        super().__init__()
        self.emb, self.out = nn.Embedding(9, 6), nn.Dense(6, 9)

    def construct(self, tokens):
        mask = (tokens != 0).astype(ms.float32).expand_dims(-1)
        h = (self.emb(tokens) * mask).sum(1) / mask.sum(1)
        return ops.cross_entropy(self.out(h), tokens[:, 0])


net = Bag()
opt = nn.Adam(net.trainable_params(), 0.01)
grad_fn = ms.value_and_grad(net, None, opt.parameters)
batches = ck.data.resumable(BucketLoader(TEXTS, 4), epochs=2)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    for tokens in batches:
        loss, grads = grad_fn(tokens)
        opt(grads)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
