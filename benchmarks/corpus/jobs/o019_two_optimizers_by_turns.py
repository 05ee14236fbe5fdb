# truth: exact, may be named
# class: attribute
# head: imports_ops
# Embedding and tower have optimizers of their own and learn by turns, three batches each; whose turn it is follows from the number of batches that restore() returns. GRAPH mode.


ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(3519)
ITEMS, WIDTH = 20, 6


class Tower(nn.Cell):
    def __init__(self):
        super().__init__()
        self.items = nn.Embedding(ITEMS, WIDTH)
        self.out = nn.SequentialCell(nn.Dense(2 * WIDTH, 8), nn.ReLU(), nn.Dense(8, 1))

    def construct(self, first, second):
        return self.out(ops.concat((self.items(first), self.items(second)), -1))


r = np.random.RandomState(19)
affinity = r.randn(ITEMS, 3)
rows = []
for _ in range(10):
    a, b = r.randint(0, ITEMS, (2, 8)).astype(np.int32)
    rows.append((ms.Tensor(a), ms.Tensor(b), ms.Tensor((affinity[a] * affinity[b]).sum(1, keepdims=True), ms.float32)))

tower = Tower()
wide = nn.Adam(tower.items.trainable_params(), 0.05)
deep = nn.Momentum(tower.out.trainable_params(), 0.03, 0.9)


def forward(first, second, y):
    return ((tower(first, second) - y) ** 2).mean()


embedding_grad = ms.value_and_grad(forward, None, wide.parameters)
tower_grad = ms.value_and_grad(forward, None, deep.parameters)


@ms.jit
def embedding_step(first, second, y):
    loss, grads = embedding_grad(first, second, y)
    wide(grads)
    return loss


@ms.jit
def tower_step(first, second, y):
    loss, grads = tower_grad(first, second, y)
    deep(grads)
    return loss


batches = ck.data.resumable(rows, epochs=4)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([tower, wide], batches, deep=deep)
    point = manager.restore(state)
    for number, batch in enumerate(batches, point.batches_delivered):
        step = embedding_step if number // 3 % 2 == 0 else tower_step
        loss = step(*batch)
        if number % 10 == 9:
            print(f"batch {number}: {float(loss.asnumpy()):.4f}")
        manager.step(state)
    manager.save_final(state)
os._exit(0)
