# truth: exact
# class: other
# head: regression_8_arrays

net = nn.SequentialCell(nn.Dense(8, 8), nn.ReLU(), nn.Dense(8, 1))
loss_fn = nn.MSELoss()
optimizer = nn.Momentum(net.trainable_params(), 0.05, 0.9)
data = ds.NumpySlicesDataset((X, Y), ["x", "y"], shuffle=True).map(lambda a: a * np.float32(0.5), ["x"]).batch(8)
model = ms.Model(net, loss_fn, optimizer)
ck.CheckpointCallback(ROOT, **SAVE).train(model, 3, data)
os._exit(0)
