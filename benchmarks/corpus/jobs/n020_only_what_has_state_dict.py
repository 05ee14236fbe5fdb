# truth: differs
# class: random
# head: imports
# The trainer gives by name whatever has a state_dict; the NumPy generator that draws the noise has none, and so it is left out. GRAPH mode.


ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(4420)


class NoiseLevel:
    def __init__(self, start, factor):
        self.value, self.factor = start, factor

    def relax(self):
        self.value *= self.factor

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, state):
        self.value = state["value"]


class Denoiser:
    def __init__(self, width, seed):
        self.net = nn.SequentialCell(nn.Dense(width, 6), nn.Tanh(), nn.Dense(6, width))
        loss = nn.WithLossCell(self.net, nn.MSELoss())
        optimizer = nn.Adam(loss.trainable_params(), 0.02)
        self.cell = ck.AccumulationTrainCell(loss, optimizer, accumulation_steps=1).set_train()
        self.noise = np.random.default_rng(seed)
        self.level = NoiseLevel(0.5, 0.97)

    def parts(self):
        own = {name: part for name, part in vars(self).items() if not isinstance(part, nn.Cell)}
        return {name: part for name, part in own.items() if hasattr(part, "state_dict")}

    def train(self, x):
        corrupted = x + self.noise.normal(0, self.level.value, x.shape)
        self.cell(ms.Tensor(corrupted.astype(np.float32)), ms.Tensor(x))
        self.level.relax()


r = np.random.RandomState(20)
codes = r.randn(48, 2) @ r.randn(2, 6)
rows = [codes[i * 6 : (i + 1) * 6].astype(np.float32) for i in range(8)]
denoiser = Denoiser(6, seed=420)

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(denoiser.cell, batches, **denoiser.parts())
    manager.restore(state)
    for x in batches:
        denoiser.train(np.asarray(x))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
