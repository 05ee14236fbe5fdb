# truth: differs
# class: callback
# head: saving_pynative_model_callback_dataset_tensor_ops
# the anchor of the pull to the start weights is copied in on_train_begin, at a resume from the restored weights

g = np.random.default_rng(5)
X, Y = g.normal(size=(64, 8)).astype(np.float32), g.normal(size=(64, 1)).astype(np.float32)
data = ds.NumpySlicesDataset((X, Y), ["x", "y"], shuffle=False).batch(8)


class L2SP(Callback):
    """Pulls the weights towards those from which fine-tuning starts."""

    def __init__(self, strength):
        super().__init__()
        self.strength, self.anchor = strength, None

    def on_train_begin(self, run_context):
        params = run_context.original_args().optimizer.parameters
        self.anchor = [p.asnumpy().copy() for p in params]

    def on_train_step_end(self, run_context):
        for p, a in zip(run_context.original_args().optimizer.parameters, self.anchor):
            ops.assign(p, p + self.strength * (Tensor(a) - p))


net = nn.SequentialCell(nn.Dense(8, 8), nn.ReLU(), nn.Dense(8, 1))
model = Model(net, nn.MSELoss(), nn.Momentum(net.trainable_params(), 0.03, 0.9))
ck.CheckpointCallback(ROOT, **SAVE).train(model, 3, data, callbacks=[L2SP(0.05)])
os._exit(0)
