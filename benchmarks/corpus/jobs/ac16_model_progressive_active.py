# truth: differs
# class: attribute
# head: saving_pynative_dataset_parameter

rng0 = np.random.default_rng(11)
X = rng0.normal(size=(80, 6)).astype(np.float32)
Y = (X[:, :1] * 0.7 - X[:, 1:2] ** 2).astype(np.float32)
train_data = ds.NumpySlicesDataset((X, Y), ["x", "y"], shuffle=True).batch(8)


class Growing(nn.Cell):
    def __init__(self, depth):
        super().__init__()
        self.stem = nn.Dense(6, 8)
        self.blocks = nn.CellList([nn.Dense(8, 8) for _ in range(depth)])
        self.head = nn.Dense(8, 1)
        self.active = 1

    def construct(self, x):
        h = ops.tanh(self.stem(x))
        for block in self.blocks[: self.active]:
            h = h + ops.tanh(block(h))
        return self.head(h)


class Grow(ms.Callback):
    def __init__(self, network):
        super().__init__()
        self.network = network

    def on_train_step_end(self, run_context):
        params = run_context.original_args()
        if params.cur_step_num % 4 == 0 and self.network.active < len(self.network.blocks):
            self.network.active += 1


net = Growing(4)
opt = nn.Adam(net.trainable_params(), 0.01)
model = ms.Model(net, nn.MSELoss(), opt)
ck.CheckpointCallback(ROOT, **SAVE).train(model, 3, train_data, callbacks=[Grow(net)])
os._exit(0)
