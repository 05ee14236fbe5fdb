# truth: exact
# class: other
# head: regression_6_graph_dataset

VX = rng0.normal(size=(16, 6)).astype(np.float32)
VY = (VX[:, :1] * 0.7 - VX[:, 1:2] ** 2).astype(np.float32)
valid_data = ds.NumpySlicesDataset((VX, VY), ["x", "y"], shuffle=False).batch(8)
net = nn.SequentialCell(nn.Dense(6, 12), nn.Tanh(), nn.Dense(12, 1))
opt = nn.Momentum(net.trainable_params(), 0.05, 0.9)
model = ms.Model(net, nn.MSELoss(), opt, metrics={"mse": nn.MSE()})

ckpt = ck.CheckpointCallback(ROOT, keep=ck.KeepLatest(3), **SAVE)
ckpt.fit(
    model,
    3,
    train_data,
    valid_data,
    callbacks=[
        ms.EarlyStopping(monitor="eval_loss", patience=3),
        ms.ReduceLROnPlateau(monitor="eval_loss", patience=1),
        ms.LossMonitor(5),
    ],
)
os._exit(0)
