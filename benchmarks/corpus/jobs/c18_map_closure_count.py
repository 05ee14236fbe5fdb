# truth: refused
# class: outside
# head: regression_8_arrays

net = nn.SequentialCell(nn.Dense(8, 8), nn.ReLU(), nn.Dense(8, 1))
loss_fn = nn.MSELoss()


def make_aug():
    n = 0

    def aug(x):
        nonlocal n
        n += 1
        return x * np.float32(1 + 0.001 * n)

    return aug


optimizer = nn.Momentum(net.trainable_params(), 0.05, 0.9)
data = (
    ds.NumpySlicesDataset((X, Y), ["x", "y"], shuffle=False)
    .map(make_aug(), ["x"], python_multiprocessing=False)
    .batch(8)
)
model = ms.Model(net, loss_fn, optimizer)
ck.CheckpointCallback(ROOT, **SAVE).train(model, 3, data)
os._exit(0)
