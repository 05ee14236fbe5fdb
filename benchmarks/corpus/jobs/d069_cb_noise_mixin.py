# truth: differs
# class: attribute
# head: saving_pynative_model_callback_dataset_tensor_ops
# a mixin gives the callback a RandomState of its own and a noise level that decays with each draw

g = np.random.default_rng(5)
X, Y = g.normal(size=(64, 8)).astype(np.float32), g.normal(size=(64, 1)).astype(np.float32)
data = ds.NumpySlicesDataset((X, Y), ["x", "y"], shuffle=False).batch(8)


class NoiseSource:
    def seed_noise(self, seed, sigma, decay):
        self._random, self._sigma, self._decay = np.random.RandomState(seed), sigma, decay

    def draw(self, shape):
        self._sigma *= self._decay
        return (self._sigma * self._random.standard_normal(shape)).astype(np.float32)


class LangevinNoise(NoiseSource, Callback):
    def __init__(self, sigma=0.01, seed=5):
        Callback.__init__(self)
        self.seed_noise(seed, sigma, 0.99)

    def on_train_step_end(self, run_context):
        for p in self.targets(run_context):
            ops.assign(p, p + Tensor(self.draw(p.shape)))

    def targets(self, run_context):
        return run_context.original_args().optimizer.parameters


class BiasFreeLangevin(LangevinNoise):
    def targets(self, run_context):
        return [p for p in super().targets(run_context) if p.ndim > 1]


net = nn.SequentialCell(nn.Dense(8, 8), nn.ReLU(), nn.Dense(8, 1))
model = Model(net, nn.MSELoss(), nn.SGD(net.trainable_params(), 0.05))
ck.CheckpointCallback(ROOT, **SAVE).train(model, 3, data, callbacks=[BiasFreeLangevin()])
os._exit(0)
