# truth: differs
# class: global
# head: saving_pynative_model_callback_dataset_tensor_ops
# the pruning masks are NumPy arrays in the callback; without them pruned weights grow again



def create_dataset(seed, batch_size=8):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(64, 8)).astype(np.float32)
    y = np.sin(x[:, :2].sum(axis=1, keepdims=True)).astype(np.float32)
    return ds.NumpySlicesDataset({"x": x, "y": y}, shuffle=True).batch(batch_size)


ds.config.set_seed(4)
data = create_dataset(9)


class GradualPruning(Callback):
    def __init__(self, steps, final=0.6, every=4):
        super().__init__()
        self.steps, self.final, self.every = steps, final, every
        self.masks, self.t = {}, 0

    @property
    def sparsity(self):
        return self.final * (1 - (1 - min(1.0, self.t / self.steps)) ** 3)

    def _prune(self, p):
        w = np.abs(p.asnumpy())
        self.masks[p.name] = (w > np.quantile(w, self.sparsity)).astype(np.float32)

    def on_train_step_end(self, run_context):
        self.t += 1
        for p in run_context.original_args().optimizer.parameters:
            if p.ndim == 2:
                if self.t % self.every == 0:
                    self._prune(p)
                if p.name in self.masks:
                    ops.assign(p, p * Tensor(self.masks[p.name]))


net = nn.SequentialCell(nn.Dense(8, 8), nn.Tanh(), nn.Dense(8, 1))
model = Model(net, nn.MSELoss(), nn.Momentum(net.trainable_params(), 0.05, 0.9))
ck.CheckpointCallback(ROOT, **SAVE).train(model, 3, data, callbacks=[GradualPruning(20)])
os._exit(0)
