# truth: differs
# class: attribute
# head: saving_collections_dataset_parameter

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(3)
rng0 = np.random.default_rng(3)
CORPUS = rng0.zipf(1.6, size=400).clip(max=19).astype(np.int32)
loader = [(CORPUS[i : i + 12], CORPUS[i + 1 : i + 13]) for i in range(0, 360, 12)]
words, contexts = nn.Embedding(20, 6), nn.Embedding(20, 6)
words.update_parameters_name("w.")
contexts.update_parameters_name("c.")
params = words.trainable_params() + contexts.trainable_params()
opt = nn.Adam(params, 0.02)


class NegativeSampler:
    def __init__(self):
        self.counts = collections.defaultdict(int)

    def learn(self, tokens):
        for t in tokens:
            self.counts[int(t)] += 1

    def draw(self, rng, shape):
        keys = sorted(self.counts)
        p = np.array([self.counts[k] for k in keys]) ** 0.75
        return rng.choice(keys, size=shape, p=p / p.sum()).astype(np.int32)


def forward(center, positive, negative):
    c = words(center)
    pos = (c * contexts(positive)).sum(-1)
    neg = (c.expand_dims(1) * contexts(negative)).sum(-1)
    return ((ops.sigmoid(pos) - 1) ** 2).mean() + (ops.sigmoid(neg) ** 2).mean()


grad_fn = ms.value_and_grad(forward, None, opt.parameters)
sampler, rng = NegativeSampler(), np.random.default_rng(8)
batches = ck.data.resumable(loader, epochs=1)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([words, contexts, opt], batches, rng=rng)
    manager.restore(state)
    for center, positive in batches:
        sampler.learn(center)
        negative = sampler.draw(rng, (12, 3))
        _, grads = grad_fn(Tensor(center), Tensor(positive), Tensor(negative))
        opt(grads)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
