# truth: exact
# class: attribute
# head: regression_8_arrays

rows = [(Tensor(X[i * 8 : i * 8 + 8]), Tensor(Y[i * 8 : i * 8 + 8])) for i in range(8)]
loss_fn = nn.MSELoss()


class MoCo(nn.Cell):
    def __init__(self):
        super().__init__()
        self.enc = nn.Dense(8, 4)
        self.queue = Parameter(ops.ones((16, 4)) * 0.1, name="queue", requires_grad=False)
        self.ptr = Parameter(Tensor(0, ms.int32), name="ptr", requires_grad=False)

    def construct(self, x):
        q = self.enc(x)
        return ops.cross_entropy(ops.matmul(q, self.queue.T), ops.zeros((8,), ms.int32)), q

    def enqueue(self, k):
        p = int(self.ptr)
        arr = self.queue.asnumpy().copy()
        arr[p : p + 8] = k.asnumpy()
        self.queue.set_data(Tensor(arr))
        self.ptr.set_data(Tensor((p + 8) % 16, ms.int32))


model = MoCo()
opt = nn.SGD(model.trainable_params(), 0.1)
gf = ms.value_and_grad(model, None, opt.parameters, has_aux=True)
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([model, opt], batches)
    point = manager.restore(state)
    for x, y in batches:
        (loss, q), gr = gf(x)
        opt(gr)
        model.enqueue(ops.stop_gradient(q))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
