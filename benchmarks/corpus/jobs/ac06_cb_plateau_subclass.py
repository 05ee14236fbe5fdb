# truth: differs
# class: callback
# head: regression_6_graph_dataset

VX = rng0.normal(size=(16, 6)).astype(np.float32)
VY = (VX[:, :1] * 0.7 - VX[:, 1:2] ** 2).astype(np.float32)
valid_data = ds.NumpySlicesDataset((VX, VY), ["x", "y"], shuffle=False).batch(8)
net = nn.SequentialCell(nn.Dense(6, 12), nn.Tanh(), nn.Dense(12, 1))
opt = nn.Momentum(net.trainable_params(), 0.05, 0.9)
model = ms.Model(net, nn.MSELoss(), opt, metrics={"mse": nn.MSE()})


class PlateauWithWarmBack(ms.ReduceLROnPlateau):
    """After every reduction give a little of the rate back, less each time."""

    def __init__(self, *args, **kw):
        super().__init__(*args, **kw)
        self.reductions = 0
        self.previous = None

    def on_train_step_end(self, run_context):
        lr = run_context.original_args().optimizer.learning_rate
        self.reductions += 1
        ops.assign(lr, lr * (1 - 0.2 / self.reductions))


ckpt = ck.CheckpointCallback(ROOT, **SAVE)
ckpt.fit(model, 3, train_data, valid_data, callbacks=[PlateauWithWarmBack(monitor="eval_loss", patience=1, factor=0.5)])
os._exit(0)
