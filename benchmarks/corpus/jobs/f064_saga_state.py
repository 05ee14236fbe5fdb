# truth: exact
# class: attribute
# head: imports
# SAGA: the table of past gradients by batch number is an object with state_dict; the loop tells it number and gradient.


ms.set_seed(68)


class GradientTable:
    def __init__(self, rows, params):
        self.table = [np.zeros((rows, *p.shape), np.float32) for p in params]

    def correct(self, row, grads):
        corrected = []
        for t, g in zip(self.table, grads):
            g = g.asnumpy()
            corrected.append(ms.Tensor(g - t[row] + t.mean(0)))
            t[row] = g
        return tuple(corrected)

    def state_dict(self):
        return {f"t{i}": t.copy() for i, t in enumerate(self.table)}

    def load_state_dict(self, state):
        for i, t in enumerate(self.table):
            t[...] = state[f"t{i}"]


def batches_with_number(n=8):
    r = np.random.RandomState(68)
    w = r.randn(6, 2)
    return [(i, x.astype(np.float32), (x @ w).astype(np.float32)) for i, x in enumerate(r.randn(n, 5, 6))]


net = nn.SequentialCell(nn.Dense(6, 7), nn.ReLU(), nn.Dense(7, 2))
optimizer = nn.SGD(net.trainable_params(), learning_rate=0.03)
loss_fn = nn.MSELoss()
grad_fn = ms.value_and_grad(lambda x, y: loss_fn(net(x), y), None, optimizer.parameters)
table = GradientTable(8, list(optimizer.parameters))

batches = ck.data.resumable(batches_with_number(), epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, optimizer], batches, table=table)
    manager.restore(state)
    for number, x, y in batches:
        loss, grads = grad_fn(ms.Tensor(x), ms.Tensor(y))
        optimizer(table.correct(int(number), grads))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
