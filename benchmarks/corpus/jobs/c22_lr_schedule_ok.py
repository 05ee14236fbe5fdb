# truth: exact
# class: other
# head: saving_stdlib_dataset_parameter

ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(1)
g = np.random.default_rng(5)
X, Y = g.normal(size=(64, 8)).astype(np.float32), g.normal(size=(64, 1)).astype(np.float32)
net = nn.SequentialCell(nn.Dense(8, 8), nn.ReLU(), nn.Dense(8, 1))
loss_fn = nn.MSELoss()
optimizer = nn.Momentum(net.trainable_params(), nn.cosine_decay_lr(0.001, 0.05, 24, 8, 3), 0.9)
data = ds.NumpySlicesDataset((X, Y), ["x", "y"], shuffle=False).batch(8)
model = ms.Model(net, loss_fn, optimizer)
ck.CheckpointCallback(ROOT, **SAVE).train(model, 3, data)
os._exit(0)
