# truth: differs
# class: callback
# head: saving_pynative_model_callback_dataset_tensor_ops
# the callback compares each evaluation with the best one so far, which it keeps, and sets the rate by their ratio

g = np.random.default_rng(5)
X, Y = g.normal(size=(64, 8)).astype(np.float32), g.normal(size=(64, 1)).astype(np.float32)
data = ds.NumpySlicesDataset((X, Y), ["x", "y"], shuffle=False).batch(8)

valid = ds.NumpySlicesDataset((X[:16] + 0.1, Y[:16]), ["x", "y"], shuffle=False).batch(8)


class Trial:
    """What is known of the hyperparameter trial so far."""

    def __init__(self):
        self.values = []

    def report(self, value):
        self.values.append(value)
        return value / min(self.values[:-1], default=2 * value)


class TuneByValidation(Callback):
    def __init__(self, trial, base):
        super().__init__()
        self.trial, self.base = trial, base

    def on_train_epoch_end(self, run_context):
        cb_params = run_context.original_args()
        ratio = self.trial.report(float(cb_params.eval_results["eval_loss"]))
        ops.assign(cb_params.optimizer.learning_rate, Tensor(self.base * ratio, ms.float32))


net = nn.SequentialCell(nn.Dense(8, 8), nn.ReLU(), nn.Dense(8, 1))
model = Model(net, nn.MSELoss(), nn.Momentum(net.trainable_params(), 0.05, 0.9), metrics={"mae"})
tune = TuneByValidation(Trial(), 0.05)
ck.CheckpointCallback(ROOT, **SAVE).fit(model, 3, data, valid, callbacks=[tune])
os._exit(0)
