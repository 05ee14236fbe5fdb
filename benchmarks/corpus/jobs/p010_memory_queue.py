# truth: exact
# class: outside
# head: imports_dataset_ops
# Contrastive learning with a queue of past keys and a momentum encoder.


ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(110)


def encoder():
    return nn.SequentialCell(nn.Dense(8, 16), nn.ReLU(), nn.Dense(16, 4))


class Contrast(nn.Cell):
    def __init__(self, size=24):
        super().__init__()
        self.query, self.key = encoder(), encoder()
        for q, k in zip(self.query.get_parameters(), self.key.get_parameters()):
            k.set_data(q.copy())
            k.requires_grad = False
        bank = np.random.RandomState(10).randn(size, 4).astype(np.float32)
        self.bank = ms.Parameter(ms.Tensor(bank), name="bank", requires_grad=False)
        self.norm = ops.L2Normalize(axis=1)
        self.ce = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")

    def construct(self, a, b):
        q = self.norm(self.query(a))
        k = ops.stop_gradient(self.norm(self.key(b)))
        positive = (q * k).sum(1, keepdims=True)
        logits = ops.concat((positive, ops.matmul(q, self.bank.T)), 1) / 0.2
        return self.ce(logits, ops.zeros((a.shape[0],), ms.int32)), k


class Step(nn.Cell):
    def __init__(self, contrast, optimizer, momentum=0.95):
        super().__init__(auto_prefix=False)
        self.contrast, self.optimizer, self.momentum = contrast, optimizer, momentum
        self.grad_fn = ops.value_and_grad(contrast, None, optimizer.parameters, has_aux=True)
        self.pairs = list(zip(contrast.key.get_parameters(), contrast.query.get_parameters()))

    def construct(self, a, b):
        (loss, keys), grads = self.grad_fn(a, b)
        loss = ops.depend(loss, self.optimizer(grads))
        for k, q in self.pairs:
            loss = ops.depend(loss, ops.assign(k, self.momentum * k + (1 - self.momentum) * q))
        bank = ops.concat((keys, self.contrast.bank[:-6]), 0)
        return ops.depend(loss, ops.assign(self.contrast.bank, bank))


r = np.random.RandomState(11)
base = r.randn(60, 8)
views = [(base + 0.2 * r.randn(60, 8)).astype(np.float32) for _ in range(2)]
train = ds.NumpySlicesDataset(tuple(views), ["a", "b"], shuffle=True).batch(6)
net = Contrast()
step = Step(net, nn.Momentum(net.query.trainable_params(), 0.05, 0.9))
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(ms.Model(step), 4, train)
os._exit(0)
