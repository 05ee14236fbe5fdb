# truth: differs
# class: random
# head: root_dataset_tensor_ops

ms.set_seed(6)


class GradScaler:
    """Like that of torch: halves the scale at an overflow, doubles it after some good steps."""

    def __init__(self, init_scale=2.0**8, growth_interval=3, limit=65504.0):
        self._scale, self._growth_tracker = init_scale, 0
        self.growth_interval, self.limit = growth_interval, limit

    def scale(self, loss):
        return loss * self._scale

    def step(self, optimizer, grads):
        self._found_inf = any(float(g.abs().max()) * 100 > self.limit for g in grads)
        if not self._found_inf:
            optimizer(tuple(g / self._scale for g in grads))

    def update(self):
        if self._found_inf:
            self._scale /= 2
            self._growth_tracker = 0
        else:
            self._growth_tracker += 1
            if self._growth_tracker == self.growth_interval:
                self._scale *= 2
                self._growth_tracker = 0


def build():
    rng = np.random.default_rng(8)
    x = rng.normal(size=(96, 8)).astype(np.float32)
    y = (2 * x[:, :1] - x[:, 1:2] * x[:, 2:3]).astype(np.float32)
    return ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=True).batch(8)


def train(epochs=3):
    net = nn.SequentialCell(nn.Dense(8, 16), nn.ReLU(), nn.Dense(16, 1))
    optimizer = nn.Adam(net.trainable_params(), 0.01)
    scaler = GradScaler()
    criterion = nn.MSELoss()

    def forward(x, y):
        return scaler.scale(criterion(net(x), y))

    grad_fn = ms.value_and_grad(forward, None, optimizer.parameters)
    run = ck.loop(
        ROOT,
        build(),
        epochs=epochs,
        train=[net, optimizer],
        save=ck.SaveEvery(micro_steps=5),
        saving=ck.Saving(when_busy="wait"),
    )
    for x, y in run:
        number = run.step
        loss, grads = grad_fn(x, y)
        scaler.step(optimizer, grads)
        scaler.update()
        print(number, float(loss) / scaler._scale, scaler._scale)


train()
os._exit(0)
