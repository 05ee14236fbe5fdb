# truth: exact
# class: global
# head: saving_pynative_model_callback_dataset_tensor_ops
# weight noise from NumPy's global generator; its size depends on the weights alone

g = np.random.default_rng(5)
X, Y = g.normal(size=(64, 8)).astype(np.float32), g.normal(size=(64, 1)).astype(np.float32)
data = ds.NumpySlicesDataset((X, Y), ["x", "y"], shuffle=False).batch(8)


class RelativeNoise(Callback):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale
        self.largest = 0.0

    def on_train_step_end(self, run_context):
        np_random = np.random
        for p in run_context.original_args().optimizer.parameters:
            w = p.asnumpy()
            noise = self.scale * np.abs(w).mean() * np_random.standard_normal(w.shape)
            self.largest = max(self.largest, float(np.abs(noise).max()))
            ops.assign(p, Tensor((w + noise).astype(np.float32)))

    def on_train_epoch_end(self, run_context):
        print(f"largest noise so far {self.largest:.3g}")


np.random.seed(99)
net = nn.SequentialCell(nn.Dense(8, 8), nn.ReLU(), nn.Dense(8, 1))
model = Model(net, nn.MSELoss(), nn.Momentum(net.trainable_params(), 0.02, 0.9))
ck.CheckpointCallback(ROOT, **SAVE).train(model, 3, data, callbacks=[RelativeNoise(0.02)])
os._exit(0)
