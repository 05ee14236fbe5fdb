# truth: differs
# class: random
# head: regression_8_dataset

optimizer = nn.Momentum(net.trainable_params(), 0.05, 0.9)


class WeightNoise(ms.Callback):
    def __init__(self, seed=3):
        super().__init__()
        self.rng = np.random.default_rng(seed)

    def on_train_step_end(self, rc):
        for p in rc.original_args().optimizer.parameters:
            ops.assign(p, p.value() + Tensor((0.001 * self.rng.normal(size=p.shape)).astype(np.float32)))


model = ms.Model(net, loss_fn, optimizer)
ck.CheckpointCallback(ROOT, **SAVE).train(model, 3, data, callbacks=[WeightNoise()])
os._exit(0)
