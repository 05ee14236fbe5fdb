# truth: refused or exact
# class: callback
# head: regression_8_dataset

optimizer = nn.Momentum(net.trainable_params(), 0.05, 0.9)


class WeightNoise(ms.Callback):
    def __init__(self, rng):
        super().__init__()
        self.rng = rng

    def on_train_step_end(self, rc):
        for p in rc.original_args().optimizer.parameters:
            ops.assign(p, p.value() + Tensor((0.001 * self.rng.normal(size=p.shape)).astype(np.float32)))


rng = np.random.default_rng(3)
model = ms.Model(net, loss_fn, optimizer)
ck.CheckpointCallback(ROOT, stateful={"rng": rng}, **SAVE).train(model, 3, data, callbacks=[WeightNoise(rng)])
os._exit(0)
