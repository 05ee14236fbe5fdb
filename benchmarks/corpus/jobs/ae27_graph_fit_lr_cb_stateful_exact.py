# truth: exact
# class: callback
# head: regression_6_graph_dataset

valid_data = ds.NumpySlicesDataset((X[:16], Y[:16]), ["x", "y"], shuffle=False).batch(8)
net = nn.SequentialCell(nn.Dense(6, 12), nn.Tanh(), nn.Dense(12, 1))
opt = nn.Momentum(net.trainable_params(), 0.05, 0.9)
model = ms.Model(net, nn.MSELoss(), opt, metrics={"mae": nn.MAE()})


class SlopeRate(ms.Callback):
    def __init__(self):
        super().__init__()
        self.last, self.rate = 0.0, 0.05

    def on_train_step_end(self, run_context):
        params = run_context.original_args()
        loss = float(params.net_outputs)
        self.rate = float(np.clip(self.rate * (1.05 if loss < self.last else 0.9), 0.005, 0.1))
        self.last = round(loss, 3)
        ops.assign(params.optimizer.learning_rate, Tensor(self.rate, ms.float32))

    def state_dict(self):
        return {"last": self.last, "rate": self.rate}

    def load_state_dict(self, state):
        self.last, self.rate = state["last"], state["rate"]


slope = SlopeRate()
ckpt = ck.CheckpointCallback(ROOT, stateful={"slope": slope}, **SAVE)
ckpt.fit(model, 3, train_data, valid_data, callbacks=[slope])
os._exit(0)
