# truth: differs
# class: attribute
# head: regression_8_make_batches
# the queue of negative keys of MoCo is a NumPy array of the builder (key encoder and optimizer are stored)



def encoder(prefix):
    cell = nn.SequentialCell(nn.Dense(8, 16), nn.ReLU(), nn.Dense(16, 4))
    cell.update_parameters_name(prefix)
    return cell


class MoCo:
    def __init__(self, queue_size=24, m=0.95):
        self.q, self.k = encoder("query."), encoder("key.")
        for pq, pk in zip(self.q.get_parameters(), self.k.get_parameters()):
            ops.assign(pk, pq.value().copy())
        self.m = m
        self.queue = np.random.default_rng(2).normal(size=(queue_size, 4)).astype(np.float32)

    def momentum_update(self):
        for pq, pk in zip(self.q.get_parameters(), self.k.get_parameters()):
            ops.assign(pk, self.m * pk + (1 - self.m) * pq)

    def dequeue_and_enqueue(self, keys):
        self.queue = np.concatenate([keys, self.queue])[: len(self.queue)]


moco = MoCo()
optimizer = nn.Adam(moco.q.trainable_params(), 0.01)


def contrast(x, keys, negatives):
    z = moco.q(x)
    positive = ((z - keys) ** 2).mean()
    return positive + ops.relu(ops.matmul(z, negatives.T) + 0.5).mean()


grad_fn = ms.value_and_grad(contrast, None, optimizer.parameters)
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([moco.q, moco.k, optimizer], batches)
    manager.restore(state)
    for x, y in batches:
        moco.momentum_update()
        keys = ops.stop_gradient(moco.k(x + 0.1 * y))
        loss, grads = grad_fn(x, keys, Tensor(moco.queue))
        optimizer(grads)
        moco.dequeue_and_enqueue(keys.asnumpy().copy())
        manager.step(state)
    manager.save_final(state)
os._exit(0)
