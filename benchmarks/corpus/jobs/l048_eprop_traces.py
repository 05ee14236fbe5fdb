# truth: exact
# class: attribute
# head: pynative_ops
# E-prop: the layer's eligibility trace and membrane potential are buffers (register_buffer), which the loop changes in place after each batch.

ms.set_seed(4148)


class LeakyLayer(nn.Cell):
    def __init__(self, inputs, width):
        super().__init__()
        r = np.random.RandomState(148)
        self.weight = ms.Parameter((0.4 * r.randn(width, inputs)).astype(np.float32), name="weight")
        self.readout = ms.Parameter((0.4 * r.randn(1, width)).astype(np.float32), name="readout")
        self.register_buffer("potential", ms.Tensor(np.zeros(width, np.float32)))
        self.register_buffer("trace", ms.Tensor(np.zeros((width, inputs), np.float32)))

    def construct(self, x):
        return ops.tanh(0.8 * self.potential + ops.matmul(self.weight, x))


def learn(layer, x, y, rate):
    potential = layer(x)
    error = ops.matmul(layer.readout, potential) - y
    slope = 1 - potential * potential
    trace = 0.8 * layer.trace + slope.reshape(-1, 1) * x.reshape(1, -1)
    credit = (layer.readout.reshape(-1) * error).reshape(-1, 1)
    ops.assign(layer.weight, layer.weight - rate * credit * trace)
    ops.assign(layer.readout, layer.readout - rate * error.reshape(1, 1) * potential.reshape(1, -1))
    layer.potential[:] = potential
    layer.trace[:] = trace
    return float((error * error).sum().asnumpy())


r = np.random.RandomState(48)
signal = r.randn(8, 5).astype(np.float32)
target = np.cumsum(signal[:, :1], 0).astype(np.float32)
rows = [(ms.Tensor(x), ms.Tensor(np.tanh(y))) for x, y in zip(signal, target)]
layer = LeakyLayer(5, 6)

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([layer], batches)
    manager.restore(state)
    for x, y in batches:
        manager.fence()
        loss = learn(layer, x, y, rate=0.05)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
