# truth: exact
# class: attribute
# head: imports_dataset
# A loss scale of our own that keeps the largest gradient a few bits below float16's limit.


ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(116)


class HeadroomScale:
    def __init__(self, bits=3):
        self.bits, self.largest, self.value = bits, 0.0, 2.0**20

    def update(self, largest):
        self.largest = max(float(largest), 0.95 * self.largest)
        self.value = float(2.0 ** np.floor(np.log2(65504.0 / (self.largest + 1e-12)) - self.bits))

    def state_dict(self):
        return {"largest": self.largest, "value": self.value}

    def load_state_dict(self, state):
        self.largest, self.value = state["largest"], state["value"]


r = np.random.RandomState(16)
x = r.randn(70, 5).astype(np.float32)
y = (np.abs(x[:, :1]) + x[:, 1:2]).astype(np.float32)
train = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=True).batch(7)
net = nn.SequentialCell(nn.Dense(5, 16), nn.ReLU(), nn.Dense(16, 1))
optimizer = nn.Momentum(net.trainable_params(), 0.02, 0.9)
scale = HeadroomScale()
loss_fn = nn.MSELoss()


def forward(x, y, s):
    return loss_fn(net(x), y) * s


scaled_grad = ms.value_and_grad(forward, None, net.trainable_params())


@ms.jit
def grad_fn(x, y, s):
    return scaled_grad(x, y, s)


batches = ck.data.resumable(train, epochs=4)
save, saving = ck.SaveEvery(micro_steps=5), ck.Saving(when_busy="wait")
with ck.CheckpointManager(os.environ["ROOT"], save=save, saving=saving) as manager:
    state = ck.StateManager([net, optimizer], batches, scale=scale)
    manager.restore(state)
    for xb, yb in batches:
        used = np.float32(scale.value)
        _, grads = grad_fn(xb, yb, ms.Tensor(used))
        with np.errstate(over="ignore"):
            half = [g.asnumpy().astype(np.float16) for g in grads]
        scale.update(max(np.abs(g.asnumpy()).max() for g in grads) / used)
        if all(np.isfinite(g).all() for g in half):
            optimizer(tuple(ms.Tensor(g.astype(np.float32) / used) for g in half))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
