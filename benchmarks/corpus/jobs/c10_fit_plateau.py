# truth: exact
# class: other
# head: regression_8_dataset

optimizer = nn.Momentum(net.trainable_params(), 0.05, 0.9)
valid = ds.NumpySlicesDataset((X[:16], Y[:16]), ["x", "y"], shuffle=False).batch(8)
model = ms.Model(net, loss_fn, optimizer, metrics={"mae"})
ck.CheckpointCallback(ROOT, **SAVE).fit(
    model,
    3,
    data,
    valid,
    callbacks=[
        ms.ReduceLROnPlateau(monitor="mae", patience=0, factor=0.5),
        ms.EarlyStopping(monitor="mae", patience=5),
    ],
)
os._exit(0)
