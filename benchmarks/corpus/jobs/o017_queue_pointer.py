# truth: differs
# class: attribute
# head: pynative_dataset_ops
# MoCo in small: key encoder and queue are Parameters and stored, but where the next keys go in the queue is an int of the cell.

ms.set_seed(3517)
WIDTH, DIM, BATCH, QUEUE = 6, 4, 6, 24


def encoder():
    return nn.SequentialCell(nn.Dense(WIDTH, 10), nn.ReLU(), nn.Dense(10, DIM))


def unit(v):
    return v / ops.sqrt((v * v).sum(-1, keepdims=True) + 1e-6)


class MoCo(nn.Cell):
    def __init__(self, momentum):
        super().__init__()
        self.query, self.key = encoder(), encoder()
        self.momentum = momentum
        for k, q in zip(self.key.get_parameters(), self.query.get_parameters()):
            k.set_data(q.value())
            k.requires_grad = False
        start = np.random.RandomState(17).randn(QUEUE, DIM)
        start /= np.linalg.norm(start, axis=1, keepdims=True)
        self.queue = ms.Parameter(ms.Tensor(start, ms.float32), name="queue", requires_grad=False)
        self.pointer = 0

    def construct(self, first, second):
        q, k = unit(self.query(first)), ops.stop_gradient(unit(self.key(second)))
        positive = (q * k).sum(-1, keepdims=True)
        negative = ops.matmul(q, self.queue.value().T)
        return ops.relu(negative - positive + 0.3).mean()

    def follow(self):
        for k, q in zip(self.key.get_parameters(), self.query.get_parameters()):
            ops.assign(k, self.momentum * k + (1 - self.momentum) * q)

    def enqueue(self, second):
        keys = unit(self.key(second)).asnumpy()
        queue = self.queue.asnumpy().copy()
        queue[self.pointer : self.pointer + BATCH] = keys
        ops.assign(self.queue, ms.Tensor(queue))
        self.pointer = (self.pointer + BATCH) % QUEUE


class MoCoStep(nn.TrainOneStepCell):
    def construct(self, first, second):
        loss = super().construct(first, second)
        self.network.follow()
        self.network.enqueue(second)
        return loss


r = np.random.RandomState(170)
base = r.randn(60, WIDTH)
first = (base + 0.3 * r.randn(60, WIDTH)).astype(np.float32)
second = (base + 0.3 * r.randn(60, WIDTH)).astype(np.float32)
train = ds.NumpySlicesDataset((first, second), ["first", "second"], shuffle=True).batch(BATCH)
moco = MoCo(momentum=0.9)
step = MoCoStep(moco, nn.Momentum(moco.trainable_params(), 0.1, 0.9))

ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(ms.Model(step), 3, train)
os._exit(0)
