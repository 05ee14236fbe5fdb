# truth: differs
# class: attribute
# head: pynative_ops
# A deep equilibrium layer that starts from the fixed point which the same rows had in the epoch before; these lie in a table by batch number.

ms.set_seed(4135)


class WarmStarts:
    """fixed points by number of the batch, zero for a new one"""

    def __init__(self, shape):
        self._points, self._shape = {}, shape

    def __getitem__(self, number):
        return ms.Tensor(self._points.get(number, np.zeros(self._shape, np.float32)))

    def __setitem__(self, number, z):
        self._points[number] = z.asnumpy().copy()


class Equilibrium(nn.Cell):
    def __init__(self, inputs, width):
        super().__init__()
        self.inject = nn.Dense(inputs, width)
        self.mix = nn.Dense(width, width, has_bias=False)
        self.head = nn.Dense(width, 1)

    def construct(self, x, z):
        u = self.inject(x)
        for _ in range(3):
            z = ops.tanh(0.6 * self.mix(z) + u)
        return self.head(z), z


r = np.random.RandomState(35)
rows = []
for number in range(8):
    x = r.randn(6, 4).astype(np.float32)
    rows.append((number, ms.Tensor(x), ms.Tensor(np.abs(x[:, :1] - x[:, 1:2]).astype(np.float32))))
net, mse = Equilibrium(4, 8), nn.MSELoss()
opt = nn.Adam(net.trainable_params(), 0.01)


def forward(x, y, z):
    out, z = net(x, z)
    return mse(out, y), z


gradients = ms.value_and_grad(forward, None, net.trainable_params(), has_aux=True)
warm = WarmStarts((6, 8))

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    for number, x, y in batches:
        (loss, warm[number]), grads = gradients(x, y, warm[number])
        opt(grads)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
