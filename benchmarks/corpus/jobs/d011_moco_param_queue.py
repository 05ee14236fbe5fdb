# truth: exact
# class: outside
# head: imports_parameter
# queue of negatives and key encoder are parameters of cells that the StateManager is given


ROOT = os.environ["ROOT"]
SAVE = dict(save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(1)


def make_batches(seed, n=8, size=8, dim=8):
    rng = np.random.default_rng(seed)
    for x in rng.normal(size=(n, size, dim)):
        y = np.tanh(x[:, :3].sum(1, keepdims=True)) + 0.1 * rng.normal(size=(size, 1))
        yield Tensor(x, ms.float32), Tensor(y, ms.float32)


rows = list(make_batches(11))


class KeyQueue(nn.Cell):
    def __init__(self, size, dim):
        super().__init__()
        start = np.random.default_rng(2).normal(size=(size, dim)).astype(np.float32)
        self.keys = Parameter(Tensor(start), name="queue.keys", requires_grad=False)

    def enqueue(self, new):
        ops.assign(self.keys, ops.concat((new, self.keys[: -new.shape[0]]), 0))


def encoder(prefix):
    cell = nn.SequentialCell(nn.Dense(8, 16), nn.ReLU(), nn.Dense(16, 4))
    cell.update_parameters_name(prefix)
    return cell


query, key, queue = encoder("query."), encoder("key."), KeyQueue(24, 4)
for pq, pk in zip(query.get_parameters(), key.get_parameters()):
    ops.assign(pk, pq.value().copy())
optimizer = nn.Adam(query.trainable_params(), 0.01)


def contrast(x, keys):
    z = query(x)
    return ((z - keys) ** 2).mean() + ops.relu(ops.matmul(z, queue.keys.T) + 0.5).mean()


grad_fn = ms.value_and_grad(contrast, None, optimizer.parameters)
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([query, key, queue, optimizer], batches)
    manager.restore(state)
    for x, y in batches:
        for pq, pk in zip(query.get_parameters(), key.get_parameters()):
            ops.assign(pk, 0.95 * pk + 0.05 * pq)
        keys = ops.stop_gradient(key(x + 0.1 * y))
        loss, grads = grad_fn(x, keys)
        optimizer(grads)
        queue.enqueue(keys)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
