# truth: exact
# class: variable
# head: regression_8_arrays

net = nn.SequentialCell(nn.Dense(8, 8), nn.ReLU(), nn.Dense(8, 1))
loss_fn = nn.MSELoss()


def per_batch(xs, ys, info):
    e = info.get_epoch_num()
    return [v * np.float32(1 + 0.1 * e) for v in xs], ys


optimizer = nn.Momentum(net.trainable_params(), 0.05, 0.9)
data = ds.NumpySlicesDataset((X, Y), ["x", "y"], shuffle=False).batch(8, per_batch_map=per_batch)
model = ms.Model(net, loss_fn, optimizer)
ck.CheckpointCallback(ROOT, **SAVE).train(model, 3, data)
os._exit(0)
