# truth: differs
# class: data
# head: imports
# A mixing loader learns from feedback(loss); its state_dict has position and weights, but not the momentum of the weights.


ms.set_seed(9)


class MixLoader:
    """Blends two sources; the share of the second one follows the loss with momentum."""

    def __init__(self, first, second):
        self.first, self.second = first, second
        self.at = 0
        self.share = 0.5
        self._velocity = 0.0
        self._last = None

    def feedback(self, loss):
        if self._last is not None:
            self._velocity = 0.8 * self._velocity + 0.3 * (self._last - loss)
            self.share = float(np.clip(self.share + self._velocity, 0.05, 0.95))
        self._last = loss

    def __len__(self):
        return len(self.first)

    def __iter__(self):
        while self.at < len(self.first):
            i = self.at
            self.at += 1
            s = np.float32(self.share)
            (xa, ya), (xb, yb) = self.first[i], self.second[i]
            yield (1 - s) * xa + s * xb, (1 - s) * ya + s * yb
        self.at = 0

    def state_dict(self):
        return {"at": self.at % len(self.first), "share": self.share}

    def load_state_dict(self, state):
        self.at, self.share = state["at"], state["share"]


def source(seed, gain):
    r = np.random.RandomState(seed)
    return [(x, gain * x[:, :2]) for x in r.randn(8, 6, 7).astype(np.float32)]


loader = MixLoader(source(1, 1.0), source(2, -0.5))
net = nn.WithLossCell(nn.SequentialCell(nn.Dense(7, 9), nn.Tanh(), nn.Dense(9, 2)), nn.MSELoss())
cell = ck.AccumulationTrainCell(net, nn.Adam(net.trainable_params(), 0.02), 1).set_train()

batches = ck.data.resumable(loader, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches)
    manager.restore(state)
    for x, y in batches:
        loss = cell(ms.Tensor(x), ms.Tensor(y))
        loader.feedback(float(loss.asnumpy()))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
