# truth: differs
# class: callback
# head: saving_pynative_model_callback_dataset_tensor_ops
# the callback keeps a smoothed loss and the first loss as attributes and derives the learning rate from them

g = np.random.default_rng(5)
X, Y = g.normal(size=(64, 8)).astype(np.float32), g.normal(size=(64, 1)).astype(np.float32)
data = ds.NumpySlicesDataset((X, Y), ["x", "y"], shuffle=False).batch(8)


class RelativeRate(Callback):
    """Rate proportional to the smoothed loss over the loss at the beginning."""

    def __init__(self, base_lr, beta=0.8):
        super().__init__()
        self.base_lr, self.beta = base_lr, beta
        self.first = None
        self.smooth = 0.0

    def on_train_step_end(self, run_context):
        cb_params = run_context.original_args()
        loss = float(cb_params.net_outputs.asnumpy())
        if self.first is None:
            self.first = self.smooth = loss
        self.smooth = self.beta * self.smooth + (1 - self.beta) * loss
        rate = self.base_lr * min(1.5, self.smooth / self.first)
        ops.assign(cb_params.optimizer.learning_rate, Tensor(rate, ms.float32))


net = nn.SequentialCell(nn.Dense(8, 8), nn.ReLU(), nn.Dense(8, 1))
model = Model(net, nn.MSELoss(), nn.Momentum(net.trainable_params(), 0.02, 0.9))
ck.CheckpointCallback(ROOT, **SAVE).train(model, 3, data, callbacks=[RelativeRate(0.02)])
os._exit(0)
