# truth: exact
# class: other
# head: saving_stdlib_dataset_parameter

ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(1)
g = np.random.default_rng(5)
X, Y = g.normal(size=(64, 8)).astype(np.float32), g.normal(size=(64, 1)).astype(np.float32)
data = ds.NumpySlicesDataset((X, Y), ["x", "y"], shuffle=False).batch(8)
net = nn.SequentialCell(nn.Dense(8, 8), nn.ReLU(), nn.Dense(8, 1))
loss_fn = nn.MSELoss()
net2 = nn.SequentialCell(nn.Dense(8, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dense(8, 1))
loss = nn.WithLossCell(net2, loss_fn)
optimizer = nn.AdamWeightDecay(loss.trainable_params(), 0.01)
cell = ck.AccumulationTrainCell(loss, optimizer, 3, remainder="drop")
ck.CheckpointCallback(ROOT, **SAVE).train(ms.Model(cell), 3, data)
os._exit(0)
