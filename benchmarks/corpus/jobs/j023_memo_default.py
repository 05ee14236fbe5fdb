# truth: differs
# class: closure
# head: imports_tensor_ops
# A whitening layer whose helper remembers the running scale in a mutable default argument, which stands for a static variable.


ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(3123)


class Rescale(nn.Cell):
    def __init__(self, units):
        super().__init__()
        self.dense = nn.Dense(units, units)

    @staticmethod
    def _scale(h, memo={"rms": None}):
        rms = float(ops.stop_gradient(ops.sqrt((h * h).mean())).asnumpy())
        memo["rms"] = rms if memo["rms"] is None else 0.9 * memo["rms"] + 0.1 * rms
        return memo["rms"]

    def construct(self, h):
        out = self.dense(h)
        return out / (self._scale(out) + 1e-3)


net = nn.SequentialCell(nn.Dense(3, 6), nn.Tanh(), Rescale(6), nn.Dense(6, 1))
loss = nn.WithLossCell(net, nn.MSELoss())
cell = ck.AccumulationTrainCell(loss, nn.Adam(net.trainable_params(), 0.02), 1).set_train()

r = np.random.RandomState(23)
rows = []
for k in range(8):
    a = (r.randn(6, 3) * (1 + k % 3)).astype(np.float32)
    rows.append((Tensor(a), Tensor(np.sin(a.sum(1, keepdims=True)).astype(np.float32))))

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches)
    manager.restore(state)
    for x, y in batches:
        cell(x, y)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
