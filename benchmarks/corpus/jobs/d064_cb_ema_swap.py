# truth: differs
# class: callback
# head: saving_pynative_model_callback_dataset_tensor_ops
# the shadow weights in the callback are copied into the network at the end of each epoch



def create_dataset(seed, batch_size=8):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(64, 8)).astype(np.float32)
    y = np.sin(x[:, :2].sum(axis=1, keepdims=True)).astype(np.float32)
    return ds.NumpySlicesDataset({"x": x, "y": y}, shuffle=True).batch(batch_size)


ds.config.set_seed(4)
data = create_dataset(9)


class ShadowWeights:
    def __init__(self, decay):
        self.decay, self.values = decay, None

    def accumulate(self, params):
        current = {p.name: p.asnumpy().copy() for p in params}
        if self.values is None:
            self.values = current
        for name, value in current.items():
            self.values[name] = self.decay * self.values[name] + (1 - self.decay) * value

    def write_to(self, params):
        for p in params:
            ops.assign(p, Tensor(self.values[p.name]))


class EpochwiseEMA(Callback):
    def __init__(self, decay=0.9):
        super().__init__()
        self.shadow = ShadowWeights(decay)

    def on_train_step_end(self, run_context):
        self.shadow.accumulate(run_context.original_args().optimizer.parameters)

    def on_train_epoch_end(self, run_context):
        self.shadow.write_to(run_context.original_args().optimizer.parameters)


net = nn.SequentialCell(nn.Dense(8, 8), nn.ReLU(), nn.Dense(8, 1))
model = Model(net, nn.MSELoss(), nn.Momentum(net.trainable_params(), 0.05, 0.9))
ck.CheckpointCallback(ROOT, **SAVE).train(model, 3, data, callbacks=[EpochwiseEMA()])
os._exit(0)
