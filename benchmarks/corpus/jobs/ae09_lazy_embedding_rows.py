# truth: differs
# class: attribute
# head: saving_pynative_dataset_parameter

rng0 = np.random.default_rng(3)
TOK = rng0.integers(0, 30, size=(30, 8)).astype(np.int32)
loader = [Tensor(t) for t in TOK]
emb, head = nn.Embedding(30, 6), nn.Dense(6, 30)
opt = nn.Adam(emb.trainable_params() + head.trainable_params(), 0.02)


class LazyRows:
    def __init__(self, table):
        self.table, self.known = table, set()

    def ensure(self, tokens):
        fresh = sorted(set(tokens.asnumpy().tolist()) - self.known)
        if fresh:
            rows = self.table.asnumpy().copy()
            for t in fresh:
                rows[t] = np.random.default_rng(t).normal(0, 0.1, rows.shape[1])
            ops.assign(self.table, Tensor(rows))
            self.known.update(fresh)


lazy = LazyRows(emb.embedding_table)
grad_fn = ms.value_and_grad(lambda t: ops.cross_entropy(head(emb(t[:-1])), t[1:]), None, opt.parameters)
batches = ck.data.resumable(loader, epochs=1)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([emb, head, opt], batches)
    manager.restore(state)
    for tokens in batches:
        lazy.ensure(tokens)
        _, grads = grad_fn(tokens)
        opt(grads)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
