# truth: exact
# class: attribute
# head: imports_ops
# As in R2D2, the hidden state at the begin of a window is not stored but made by a burn-in over the steps before it, within the same call; norms are only printed. GRAPH, K = 2.


ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(4434)
BURN_IN, WINDOW, WIDTH = 4, 3, 6


class Recurrent(nn.Cell):
    def __init__(self):
        super().__init__()
        self.of_input, self.of_hidden = nn.Dense(2, WIDTH), nn.Dense(WIDTH, WIDTH)
        self.out = nn.Dense(WIDTH, 1)

    def construct(self, series, target):
        hidden = ops.zeros((series.shape[0], WIDTH), ms.float32)
        for t in range(BURN_IN):
            hidden = ops.tanh(self.of_input(series[:, t]) + self.of_hidden(hidden))
        hidden = ops.stop_gradient(hidden)
        loss = 0.0
        for t in range(BURN_IN, BURN_IN + WINDOW):
            hidden = ops.tanh(self.of_input(series[:, t]) + self.of_hidden(hidden))
            loss = loss + ((self.out(hidden) - target[:, t]) ** 2).mean()
        return loss / WINDOW


class Windows:
    """windows of four long series, one window after the other; each brings the steps before it along"""

    def __init__(self, series, target):
        self.series, self.target = series, target

    def __len__(self):
        return (self.series.shape[1] - BURN_IN) // WINDOW

    def __iter__(self):
        for number in range(len(self)):
            part = slice(number * WINDOW, number * WINDOW + BURN_IN + WINDOW)
            yield self.series[:, part], self.target[:, part]


r = np.random.RandomState(34)
series = np.cumsum(r.randn(4, 31, 2), 1).astype(np.float32) / 4
target = np.roll(series[..., :1] - series[..., 1:], 1, axis=1)
net = Recurrent()
cell = ck.AccumulationTrainCell(net, nn.Adam(net.trainable_params(), 0.02), accumulation_steps=2).set_train()

norms = []
batches = ck.data.resumable(Windows(series, target), epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches)
    manager.restore(state)
    for a, b in batches:
        cell(ms.Tensor(a), ms.Tensor(b))
        norms.append(float(np.linalg.norm(net.of_hidden.weight.asnumpy())))
        manager.step(state)
    manager.save_final(state)
if norms:
    print(f"recurrent norm {norms[0]:.3f} -> {norms[-1]:.3f}, largest {max(norms):.3f}")
os._exit(0)
