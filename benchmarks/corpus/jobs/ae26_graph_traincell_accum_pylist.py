# truth: differs
# class: callback
# head: saving_collections_dataset_parameter

ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(3)
rng0 = np.random.default_rng(11)
X = rng0.normal(size=(80, 6)).astype(np.float32)
Y = (X[:, :1] * 0.7 - X[:, 1:2] ** 2).astype(np.float32)
train_data = ds.NumpySlicesDataset((X, Y), ["x", "y"], shuffle=True).batch(8)
net = nn.SequentialCell(nn.Dense(6, 12), nn.Tanh(), nn.Dense(12, 1))
opt = nn.Adam(net.trainable_params(), 0.01)
model = ms.Model(net, nn.MSELoss(), opt)


class LatestWeightAveraging(ms.Callback):
    """LAWA: the mean of the last few weights."""

    def __init__(self, params, k):
        super().__init__()
        self.params = params
        self.history = collections.deque(maxlen=k)

    def on_train_step_end(self, run_context):
        step = run_context.original_args().cur_step_num
        self.history.append([p.asnumpy().copy() for p in self.params])
        if step % 9 == 0 and len(self.history) > 2:
            for p, values in zip(self.params, zip(*self.history)):
                ops.assign(p, Tensor(np.mean(values, axis=0)))


ck.CheckpointCallback(ROOT, **SAVE).train(
    model, 3, train_data, callbacks=[LatestWeightAveraging(net.trainable_params(), 8)]
)
os._exit(0)
