# truth: differs
# class: callback
# head: regression_6_graph_dataset

VX = rng0.normal(size=(16, 6)).astype(np.float32)
VY = (VX[:, :1] * 0.7 - VX[:, 1:2] ** 2).astype(np.float32)
valid_data = ds.NumpySlicesDataset((VX, VY), ["x", "y"], shuffle=False).batch(8)
net = nn.SequentialCell(nn.Dense(6, 12), nn.Tanh(), nn.Dense(12, 1))
opt = nn.Momentum(net.trainable_params(), 0.05, 0.9)
model = ms.Model(net, nn.MSELoss(), opt, metrics={"mse": nn.MSE()})

BOARD = {}


class Leaderboard(ms.Callback):
    def on_eval_end(self, run_context):
        metrics = run_context.original_args().metrics
        BOARD.setdefault("scores", []).append(round(float(metrics["mse"]), 4))

    def on_train_step_begin(self, run_context):
        scores = BOARD.get("scores", [])
        boost = 1.0 if len(scores) < 1 else 0.5 ** len(scores)
        ops.assign(opt.learning_rate, Tensor(0.05 * boost, ms.float32))


ckpt = ck.CheckpointCallback(ROOT, **SAVE)
ckpt.fit(model, 3, train_data, valid_data, callbacks=[Leaderboard()])
os._exit(0)
