# truth: differs
# class: callback
# head: saving_pynative_model_callback_dataset_tensor_ops
# the callback shrinks weights by a spectral norm whose power-iteration vectors it keeps in a dict

g = np.random.default_rng(5)
X, Y = g.normal(size=(64, 8)).astype(np.float32), g.normal(size=(64, 1)).astype(np.float32)
data = ds.NumpySlicesDataset((X, Y), ["x", "y"], shuffle=False).batch(8)


class SpectralProjection(Callback):
    def __init__(self, target=0.5, seed=0):
        super().__init__()
        self.target, self.seed = target, seed
        self.vectors = {}

    def _sigma(self, name, w):
        if name not in self.vectors:
            u = np.random.default_rng(self.seed).normal(size=w.shape[0])
            self.vectors[name] = u / np.linalg.norm(u)
        v = w.T @ self.vectors[name]
        v /= np.linalg.norm(v) + 1e-12
        u = w @ v
        sigma = np.linalg.norm(u)
        self.vectors[name] = u / (sigma + 1e-12)
        return sigma

    def on_train_step_end(self, run_context):
        for p in run_context.original_args().optimizer.parameters:
            if p.ndim == 2 and min(p.shape) > 1:
                w = p.asnumpy().astype(np.float64)
                factor = 0.9 + 0.1 * self.target / self._sigma(p.name, w)
                ops.assign(p, Tensor((w * factor).astype(np.float32)))


net = nn.SequentialCell(nn.Dense(8, 8), nn.Tanh(), nn.Dense(8, 4), nn.Tanh(), nn.Dense(4, 1))
model = Model(net, nn.MSELoss(), nn.Adam(net.trainable_params(), 0.01))
ck.CheckpointCallback(ROOT, **SAVE).train(model, 3, data, callbacks=[SpectralProjection()])
os._exit(0)
