# truth: differs
# class: callback
# head: root_dataset_tensor_ops

ms.set_seed(35)


class KeepBestWeights(ms.Callback):
    """Goes back to the best weights, with half the rate, when the evaluation was worse."""

    def __init__(self, network, optimizer):
        super().__init__()
        self.network, self.optimizer = network, optimizer
        self.best_loss, self.best_weights = np.inf, None

    def on_eval_end(self, run_context):
        metrics = run_context.original_args().metrics
        loss = metrics.get("loss") if metrics else None
        if loss is None:
            return
        if loss < self.best_loss:
            self.best_loss = loss
            self.best_weights = {p.name: p.asnumpy().copy() for p in self.network.trainable_params()}
        else:
            for p in self.network.trainable_params():
                ops.assign(p, Tensor(self.best_weights[p.name]))
            ops.assign(self.optimizer.learning_rate, self.optimizer.learning_rate * 0.5)


def pipeline(n, seed, shuffle):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 6)).astype(np.float32)
    y = (x[:, :1] * x[:, 1:2] + 0.3 * rng.normal(size=(n, 1))).astype(np.float32)
    return ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=shuffle).batch(8)


net = nn.SequentialCell(nn.Dense(6, 24), nn.Tanh(), nn.Dense(24, 1))
optimizer = nn.Momentum(net.trainable_params(), 0.2, 0.9)
model = ms.Model(net, nn.MSELoss(), optimizer, metrics={"loss": nn.Loss(), "mae": nn.MAE()})
ckpt = ck.CheckpointCallback(ROOT, save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.fit(model, 6, pipeline(48, 1, True), pipeline(32, 2, False), callbacks=[KeepBestWeights(net, optimizer)])
os._exit(0)
