# truth: exact
# class: random
# head: imports_math_ops
# BYOL in small: the target network is in the model and stored; its momentum is a cosine of the batch's number, and the views are drawn by a generator given by name.


ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(3531)
WIDTH, DIM, EPOCHS, PER_EPOCH = 8, 4, 4, 8


class Byol(nn.Cell):
    def __init__(self):
        super().__init__()
        self.online, self.target = self.encoder(), self.encoder()
        self.predictor = nn.SequentialCell(nn.Dense(DIM, 8), nn.ReLU(), nn.Dense(8, DIM))
        for slow, fast in zip(self.target.get_parameters(), self.online.get_parameters()):
            slow.set_data(fast.value())
            slow.requires_grad = False

    def encoder(self):
        return nn.SequentialCell(nn.Dense(WIDTH, 12), nn.ReLU(), nn.Dense(12, DIM))

    def construct(self, first, second):
        return self.distance(first, second) + self.distance(second, first)

    def distance(self, seen, other):
        p = self.predictor(self.online(seen))
        z = ops.stop_gradient(self.target(other))
        p = p / ops.sqrt((p * p).sum(-1, keepdims=True) + 1e-6)
        z = z / ops.sqrt((z * z).sum(-1, keepdims=True) + 1e-6)
        return ((p - z) ** 2).sum(-1).mean()

    def follow(self, momentum):
        for slow, fast in zip(self.target.get_parameters(), self.online.get_parameters()):
            ops.assign(slow, momentum * slow + (1 - momentum) * fast)


r = np.random.RandomState(31)
rows = [r.randn(6, WIDTH).astype(np.float32) for _ in range(PER_EPOCH)]
byol = Byol()
optimizer = nn.AdamWeightDecay(byol.trainable_params(), learning_rate=0.01, weight_decay=0.01)
gradients = ms.value_and_grad(byol, None, byol.trainable_params())
views = np.random.default_rng(3531)


def view(x):
    scale = views.uniform(0.8, 1.2, (len(x), 1))
    hidden = views.random(x.shape) < 0.1
    return ms.Tensor(np.where(hidden, 0, x * scale).astype(np.float32))


batches = ck.data.resumable(rows, epochs=EPOCHS)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([byol, optimizer], batches, views=views)
    point = manager.restore(state)
    for number, x in enumerate(batches, point.batches_delivered):
        x = np.asarray(x)
        loss, grads = gradients(view(x), view(x))
        manager.fence()
        optimizer(grads)
        byol.follow(1 - 0.1 * (math.cos(math.pi * number / (EPOCHS * PER_EPOCH)) + 1) / 2)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
