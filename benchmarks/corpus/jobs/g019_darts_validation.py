# truth: differs
# class: data
# head: imports_parameter
# DARTS: architecture weights are trained on validation batches that next() takes from a second, endless loader; its place is lost.


ms.set_seed(30)


def infinite(loader):
    while True:
        for item in loader:
            yield item


class MixedOp(nn.Cell):
    def __init__(self, dim):
        super().__init__()
        self.dense = nn.Dense(dim, dim)
        self.alpha = Parameter(Tensor(np.zeros(3, np.float32)), name="alpha")

    def construct(self, x):
        w = ops.softmax(self.alpha, 0)
        h = self.dense(x)
        return w[0] * ops.relu(h) + w[1] * ops.tanh(h) + w[2] * x


class SuperNet(nn.Cell):
    def __init__(self):
        super().__init__()
        self.stem = nn.Dense(5, 8)
        self.mixed = MixedOp(8)
        self.head = nn.Dense(8, 1)

    def construct(self, x):
        return self.head(self.mixed(self.stem(x)))


net = SuperNet()
arch = [p for p in net.trainable_params() if "alpha" in p.name]
weights = [p for p in net.trainable_params() if "alpha" not in p.name]
w_opt = nn.Momentum(weights, learning_rate=0.03, momentum=0.9)
a_opt = nn.Adam(arch, learning_rate=0.05)
mse = nn.MSELoss()


def loss_fn(x, y):
    return mse(net(x), y)


w_step = ms.value_and_grad(loss_fn, None, weights)
a_step = ms.value_and_grad(loss_fn, None, ms.ParameterTuple(arch))

rng = np.random.default_rng(11)
X = rng.normal(size=(84, 5)).astype(np.float32)
Y = np.tanh(X[:, :1] - X[:, 1:2] ** 2).astype(np.float32)
train = [(Tensor(X[i : i + 6]), Tensor(Y[i : i + 6])) for i in range(0, 48, 6)]
valid = [(Tensor(X[i : i + 6]), Tensor(Y[i : i + 6])) for i in range(48, 84, 6)]

valid_stream = infinite(valid)
batches = ck.data.resumable(train, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, w_opt], batches, a_opt=a_opt)
    manager.restore(state)
    for x, y in batches:
        vx, vy = next(valid_stream)
        _, a_grads = a_step(vx, vy)
        a_opt(a_grads)
        _, w_grads = w_step(x, y)
        w_opt(w_grads)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
