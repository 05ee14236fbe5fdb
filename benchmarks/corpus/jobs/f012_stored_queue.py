# truth: exact
# class: outside
# head: imports_ops
# A MoCo-like queue of negative keys in an object with state_dict and load_state_dict that is given by name.


ms.set_seed(6)
ms.set_context(mode=ms.PYNATIVE_MODE)


class NegativeQueue:
    def __init__(self, size, dim):
        init = np.random.RandomState(12).randn(size, dim)
        self.keys = (init / np.linalg.norm(init, axis=1, keepdims=True)).astype(np.float32)
        self.ptr = 0

    def push(self, k):
        for row in k:
            self.keys[self.ptr] = row
            self.ptr = (self.ptr + 1) % len(self.keys)

    def state_dict(self):
        return {"keys": self.keys.copy(), "ptr": self.ptr}

    def load_state_dict(self, s):
        self.keys = np.array(s["keys"], dtype=np.float32)
        self.ptr = int(s["ptr"])


class InfoNCE(nn.Cell):
    def __init__(self, encoder, tau=0.2):
        super().__init__()
        self.encoder = encoder
        self.tau = tau

    def embed(self, x):
        z = self.encoder(x)
        return z / (ops.sqrt((z * z).sum(1, keepdims=True)) + 1e-6)

    def construct(self, a, b, negatives):
        qa, kb = self.embed(a), ops.stop_gradient(self.embed(b))
        pos = (qa * kb).sum(1, keepdims=True)
        neg = ops.matmul(qa, negatives.T)
        logits = ops.concat((pos, neg), axis=1) / self.tau
        return ops.cross_entropy(logits, ops.zeros(a.shape[0], ms.int32))


model = InfoNCE(nn.SequentialCell(nn.Dense(10, 16), nn.ReLU(), nn.Dense(16, 6)))
cell = ck.AccumulationTrainCell(model, nn.Momentum(model.trainable_params(), 0.05, 0.9), 2).set_train()
queue = NegativeQueue(18, 6)
r = np.random.RandomState(5)
views = [(v, v + 0.1 * r.randn(4, 10).astype(np.float32)) for v in r.randn(8, 4, 10).astype(np.float32)]

batches = ck.data.resumable(views, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches, queue=queue)
    manager.restore(state)
    for a, b in batches:
        a, b = ms.Tensor(a), ms.Tensor(b)
        cell(a, b, ms.Tensor(queue.keys.copy()))
        queue.push(model.embed(b).asnumpy())
        manager.step(state)
    manager.save_final(state)
os._exit(0)
