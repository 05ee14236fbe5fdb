# truth: exact
# class: callback
# head: graph_callback_dataset_ops
# Quantization-aware training (PACT): clipping levels are learned Parameters, weights are rounded straight-through; a callback prints levels and how many codes are in use. GRAPH, K = 2.

ms.set_seed(4458)


class PACT(nn.Cell):
    def __init__(self, bits, level):
        super().__init__()
        self.steps = float(2**bits - 1)
        self.level = ms.Parameter(ms.Tensor(level, ms.float32), name="level")

    def construct(self, x):
        clipped = 0.5 * (ops.abs(x) - ops.abs(x - self.level) + self.level)
        rounded = ops.round(clipped * self.steps / self.level) * self.level / self.steps
        return clipped + ops.stop_gradient(rounded - clipped)


class QuantDense(nn.Cell):
    def __init__(self, inputs, outputs, bits):
        super().__init__()
        self.dense = nn.Dense(inputs, outputs)
        self.half = float(2 ** (bits - 1) - 1)

    def construct(self, x):
        weight = ops.clip_by_value(self.dense.weight, -1.0, 1.0)
        rounded = ops.round(weight * self.half) / self.half
        weight = weight + ops.stop_gradient(rounded - weight)
        return ops.matmul(x, weight.transpose(1, 0)) + self.dense.bias


class Levels(Callback):
    def __init__(self, net):
        super().__init__()
        self.net = net
        self.history = []

    def on_train_epoch_end(self, run_context):
        levels = [float(c.level.asnumpy()) for _, c in self.net.cells_and_names() if isinstance(c, PACT)]
        used = [
            len(np.unique(np.round(c.dense.weight.asnumpy() * c.half)))
            for _, c in self.net.cells_and_names()
            if isinstance(c, QuantDense)
        ]
        self.history.append(levels)
        moved = np.abs(np.subtract(self.history[-1], self.history[0])).max()
        print(f"epoch {run_context.original_args().cur_epoch_num}: levels {levels}, moved {moved:.3f}, codes {used}")


r = np.random.RandomState(58)
x = r.randn(48, 6).astype(np.float32)
y = (np.tanh(x[:, :1] * x[:, 1:2]) + 0.5 * x[:, 2:3]).astype(np.float32)
train = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=True).batch(6)
net = nn.SequentialCell(QuantDense(6, 12, 4), PACT(4, 2.0), QuantDense(12, 8, 4), PACT(4, 2.0), nn.Dense(8, 1))
loss = nn.WithLossCell(net, nn.MSELoss())
cell = ck.AccumulationTrainCell(loss, nn.Momentum(loss.trainable_params(), 0.05, 0.9), accumulation_steps=2)
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(ms.Model(cell), 3, train, callbacks=[Levels(net)])
os._exit(0)
