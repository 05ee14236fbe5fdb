# truth: exact, may be named
# class: callback
# head: saving_pynative_model_callback_dataset_tensor_ops
# momentum and rate are looked up by the epoch number that Model.train reports; the callback remembers what it printed

g = np.random.default_rng(5)
X, Y = g.normal(size=(64, 8)).astype(np.float32), g.normal(size=(64, 1)).astype(np.float32)
data = ds.NumpySlicesDataset((X, Y), ["x", "y"], shuffle=False).batch(8)


class EpochTable(Callback):
    def __init__(self, table):
        super().__init__()
        self.table = sorted(table.items(), reverse=True)
        self.printed = set()

    def lookup(self, epoch):
        return next(values for begin, values in self.table if epoch >= begin)

    def on_train_step_begin(self, run_context):
        cb_params = run_context.original_args()
        values = self.lookup(cb_params.cur_epoch_num)
        for name, value in values.items():
            ops.assign(getattr(cb_params.optimizer, name), Tensor(value, ms.float32))
        if cb_params.cur_epoch_num not in self.printed:
            self.printed.add(cb_params.cur_epoch_num)
            print(f"epoch {cb_params.cur_epoch_num}: {values}")


table = {
    1: {"learning_rate": 0.05, "momentum": 0.5},
    2: {"learning_rate": 0.03, "momentum": 0.8},
    3: {"learning_rate": 0.01, "momentum": 0.95},
}
net = nn.SequentialCell(nn.Dense(8, 8), nn.ReLU(), nn.Dense(8, 1))
model = Model(net, nn.MSELoss(), nn.Momentum(net.trainable_params(), 0.05, 0.5))
ck.CheckpointCallback(ROOT, **SAVE).train(model, 3, data, callbacks=[EpochTable(table)])
os._exit(0)
