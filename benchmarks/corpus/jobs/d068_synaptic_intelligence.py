# truth: differs
# class: attribute
# head: saving_pynative_model_callback_dataset_tensor_ops
# the path integral of the weight changes (importance) and the weights of the epoch before are in the callback



def create_dataset(seed, batch_size=8):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(64, 8)).astype(np.float32)
    y = np.sin(x[:, :2].sum(axis=1, keepdims=True)).astype(np.float32)
    return ds.NumpySlicesDataset({"x": x, "y": y}, shuffle=True).batch(batch_size)


ds.config.set_seed(4)
data = create_dataset(9)


class SynapticIntelligence(Callback):
    def __init__(self, strength=0.2, damping=0.05):
        super().__init__()
        self.strength, self.damping = strength, damping
        self.importance, self.previous, self.anchor = {}, {}, {}

    def on_train_step_begin(self, run_context):
        for p in run_context.original_args().optimizer.parameters:
            self.previous[p.name] = p.asnumpy().copy()

    def on_train_step_end(self, run_context):
        for p in run_context.original_args().optimizer.parameters:
            now = p.asnumpy().copy()
            moved = np.abs(now - self.previous[p.name])
            self.importance[p.name] = self.importance.get(p.name, 0.0) + moved
            anchor = self.anchor.setdefault(p.name, now)
            rigidity = self.importance[p.name] / (self.importance[p.name] + self.damping)
            ops.assign(p, Tensor((now + self.strength * rigidity * (anchor - now)).astype(np.float32)))

    def on_train_epoch_end(self, run_context):
        self.anchor = {p.name: p.asnumpy().copy() for p in run_context.original_args().optimizer.parameters}


net = nn.SequentialCell(nn.Dense(8, 8), nn.Tanh(), nn.Dense(8, 1))
model = Model(net, nn.MSELoss(), nn.Adam(net.trainable_params(), 0.02))
ck.CheckpointCallback(ROOT, **SAVE).train(model, 3, data, callbacks=[SynapticIntelligence()])
os._exit(0)
