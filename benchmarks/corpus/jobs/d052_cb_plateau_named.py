# truth: exact
# class: callback
# head: saving_pynative_model_callback_dataset_tensor_ops
# the plateau callback has state_dict and load_state_dict and is given in stateful=



def create_dataset(seed, batch_size=8):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(64, 8)).astype(np.float32)
    y = np.sin(x[:, :2].sum(axis=1, keepdims=True)).astype(np.float32)
    return ds.NumpySlicesDataset({"x": x, "y": y}, shuffle=True).batch(batch_size)


ds.config.set_seed(4)
data = create_dataset(9)


class StepPlateau(Callback):
    def __init__(self, lr, factor=0.7, patience=2):
        super().__init__()
        self.lr, self.factor, self.patience = lr, factor, patience
        self.best, self.bad = float("inf"), 0

    def on_train_step_end(self, run_context):
        cb_params = run_context.original_args()
        loss = float(cb_params.net_outputs.asnumpy())
        if loss < 0.95 * self.best:
            self.best, self.bad = loss, 0
        else:
            self.bad += 1
        if self.bad > self.patience:
            self.lr, self.bad = self.lr * self.factor, 0
        ops.assign(cb_params.optimizer.learning_rate, Tensor(self.lr, ms.float32))

    def state_dict(self):
        return {"lr": self.lr, "best": self.best, "bad": self.bad}

    def load_state_dict(self, state):
        self.lr, self.best, self.bad = state["lr"], state["best"], state["bad"]


net = nn.SequentialCell(nn.Dense(8, 8), nn.Tanh(), nn.Dense(8, 1))
model = Model(net, nn.MSELoss(), nn.Adam(net.trainable_params(), 0.02))
plateau = StepPlateau(0.02)
ck.CheckpointCallback(ROOT, stateful={"plateau": plateau}, **SAVE).train(model, 3, data, callbacks=[plateau])
os._exit(0)
