# truth: differs
# class: attribute
# head: saving_pynative_dataset_parameter

rng0 = np.random.default_rng(31)
X = rng0.normal(size=(80, 6)).astype(np.float32)
Y = (np.abs(X).argmax(1) % 4).astype(np.int32)
order = rng0.permutation(80)
loader = [(order[i : i + 8], Tensor(X[order[i : i + 8]]), Tensor(Y[order[i : i + 8]])) for i in range(0, 80, 8)]
net = nn.SequentialCell(nn.Dense(6, 12), nn.ReLU(), nn.Dense(12, 4))

opt = nn.Adam(net.trainable_params(), 0.02)


class ForgettingTracker:
    def __init__(self, n):
        self.was_correct = np.zeros(n, bool)
        self.forgotten = set()

    def keep(self, ids, epoch):
        if epoch < 1:
            return np.ones(len(ids), np.float32)
        return np.array([1.0 if int(i) in self.forgotten else 0.3 for i in ids], np.float32)

    def record(self, ids, correct):
        lost = self.was_correct[ids] & ~correct
        self.forgotten |= {int(i) for i in np.asarray(ids)[lost | ~correct]}
        self.was_correct[ids] = correct


tracker = ForgettingTracker(80)


def forward(x, y, w):
    logits = net(x)
    return (ops.cross_entropy(logits, y, reduction="none") * w).mean(), logits


grad_fn = ms.value_and_grad(forward, None, opt.parameters, has_aux=True)
batches = ck.data.resumable(loader, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    for ids, x, y in batches:
        (_, logits), grads = grad_fn(x, y, Tensor(tracker.keep(ids, batches.epoch)))
        opt(grads)
        tracker.record(ids, logits.asnumpy().argmax(1) == y.asnumpy())
        manager.step(state)
    manager.save_final(state)
os._exit(0)
