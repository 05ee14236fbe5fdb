# truth: exact
# class: random
# head: imports_tensor_ops


ROOT = os.environ["ROOT"]
ms.set_seed(5)


class Encoder(nn.Cell):
    def __init__(self):
        super().__init__()
        self.body = nn.SequentialCell(nn.Dense(12, 16), nn.ReLU(), nn.Dense(16, 6))

    def construct(self, x):
        z = self.body(x)
        return z / ops.sqrt((z * z).sum(-1, keepdims=True) + 1e-6)


class Queue:
    def __init__(self, size, dim, rng):
        bank = rng.normal(size=(size, dim)).astype(np.float32)
        self.bank = bank / np.linalg.norm(bank, axis=1, keepdims=True)
        self.pointer = 0

    def enqueue(self, keys):
        n = len(keys)
        where = np.arange(self.pointer, self.pointer + n) % len(self.bank)
        self.bank[where] = keys
        self.pointer = (self.pointer + n) % len(self.bank)


def augment(x, rng):
    return (x + rng.normal(0, 0.1, x.shape)).astype(np.float32) * (rng.random(x.shape) > 0.1)


query, key = Encoder(), Encoder()
query.update_parameters_name("q.")
key.update_parameters_name("k.")
for q, k in zip(query.get_parameters(), key.get_parameters()):
    k.set_data(q.data)
    k.requires_grad = False
optimizer = nn.Momentum(query.trainable_params(), 0.05, 0.9)
rng = np.random.default_rng(2)
queue = Queue(64, 6, np.random.default_rng(9))
data = np.random.default_rng(1).normal(size=(160, 12)).astype(np.float32)


def info_nce(x, positive, negatives):
    q = query(x)
    logits = ops.cat([(q * positive).sum(-1, keepdims=True), ops.matmul(q, negatives.T)], 1) / 0.2
    return ops.cross_entropy(logits, ops.zeros(x.shape[0], ms.int32))


grad_fn = ms.value_and_grad(info_nce, None, optimizer.parameters)


def momentum_update(m=0.95):
    for q, k in zip(query.get_parameters(), key.get_parameters()):
        ops.assign(k, m * k + (1 - m) * q)


run = ck.loop(
    ROOT,
    [data[i:i + 16] for i in range(0, 160, 16)],
    epochs=4,
    train=[query, key, optimizer],
    stateful={"rng": rng, "queue": ck.attributes(queue, "bank", "pointer")},
    save=ck.SaveEvery(micro_steps=5),
    saving=ck.Saving(when_busy="wait"),
)
for x in run:
    number = run.step
    view, other = augment(x, rng), augment(x, rng)
    momentum_update()
    k = key(Tensor(other, ms.float32))
    loss, grads = grad_fn(Tensor(view, ms.float32), k, Tensor(queue.bank))
    optimizer(grads)
    queue.enqueue(k.asnumpy())
    if number % 10 == 0:
        print(number, float(loss))
os._exit(0)
