# truth: differs
# class: attribute
# head: imports_ops
# Lookahead as a proxy around the train cell (attributes delegated by __getattr__); slow weights and phase are lost.


ms.set_seed(90)


class Lookahead:
    def __init__(self, cell, k=6, alpha=0.5):
        self._cell = cell
        self._k, self._alpha = k, alpha
        self._slow = None
        self._phase = 0

    def __getattr__(self, name):
        return getattr(self._cell, name)

    def __call__(self, *batch):
        fast = self._cell.optimizer.parameters
        if self._slow is None:
            self._slow = [p.asnumpy().copy() for p in fast]
        loss = self._cell(*batch)
        self._phase += 1
        if self._phase == self._k:
            self._phase = 0
            for p, s in zip(fast, self._slow):
                s += self._alpha * (p.asnumpy() - s)
                ops.assign(p, ms.Tensor(s.copy()))
        return loss


class Attn(nn.Cell):
    def __init__(self, d=6):
        super().__init__()
        self.qkv = nn.Dense(d, 3 * d)
        self.out = nn.Dense(d, 1)
        self.d = d

    def construct(self, x, y):
        q, k, v = ops.split(self.qkv(x), self.d, axis=-1)
        w = ops.softmax(ops.bmm(q, k.swapaxes(-1, -2)) * 0.4, -1)
        return ((self.out(ops.bmm(w, v)).mean(1) - y) ** 2).mean()


net = Attn()
inner = ck.AccumulationTrainCell(net, nn.Adam(net.trainable_params(), 0.02), 1)
inner.set_train()
trainer = Lookahead(inner)

r = np.random.RandomState(3)
loader = [(ms.Tensor(x), ms.Tensor(x.max(1)[:, :1])) for x in r.randn(8, 3, 4, 6).astype(np.float32)]
batches = ck.data.resumable(loader, epochs=3)
manager = ck.CheckpointManager(
    os.environ["ROOT"],
    save=ck.SaveEvery(micro_steps=5),
    saving=ck.Saving(when_busy="wait", window="off"),
)
with manager:
    state = ck.StateManager(inner, batches)
    manager.restore(state)
    for x, y in batches:
        trainer(x, y)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
