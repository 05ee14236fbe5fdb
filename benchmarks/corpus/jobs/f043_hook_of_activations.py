# truth: differs
# class: attribute
# head: imports_ops
# A backward hook on a hidden activation divides its gradient by a running RMS, kept on the function that is the hook.


ms.set_seed(36)
ms.set_context(mode=ms.PYNATIVE_MODE)


def normalize(grad):
    rms = float(ops.sqrt((grad * grad).mean()))
    normalize.running = 0.9 * normalize.running + 0.1 * rms
    return grad * (0.02 / (normalize.running + 1e-6))


normalize.running = 1.0


class Hooked(nn.Cell):
    def __init__(self):
        super().__init__()
        self.lower = nn.Dense(9, 12)
        self.upper = nn.Dense(12, 2)

    def construct(self, x):
        h = ops.tanh(self.lower(x))
        h.register_hook(normalize)
        return self.upper(h)


net = Hooked()
train_net = nn.WithLossCell(net, nn.MSELoss())
optimizer = nn.Momentum(net.trainable_params(), 0.1, 0.9)
cell = ck.AccumulationTrainCell(train_net, optimizer, accumulation_steps=2)
cell.set_train()

r = np.random.RandomState(36)
rows = [(ms.Tensor(x), ms.Tensor(x[:, 1:3] - x[:, 3:5])) for x in r.randn(8, 5, 9).astype(np.float32)]
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
print("running rms", normalize.running)
os._exit(0)
