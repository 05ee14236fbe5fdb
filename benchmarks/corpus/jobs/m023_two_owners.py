# truth: differs
# class: random
# head: imports_random
# Cropper and mixer draw from one random.Random and are both given by name; each load_state_dict makes a generator of its own, so that they no longer share it.


ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(4323)


class Drawing:
    """something that draws; its state is that of the generator"""

    def __init__(self, rng):
        self.rng = rng

    def state_dict(self):
        version, words, waiting = self.rng.getstate()
        return {"version": version, "words": list(words), "waiting": waiting}

    def load_state_dict(self, state):
        self.rng = random.Random()
        self.rng.setstate((state["version"], tuple(state["words"]), state["waiting"]))


class Cropper(Drawing):
    def __call__(self, x, width):
        left = self.rng.randrange(x.shape[1] - width + 1)
        return x[:, left : left + width]


class Mixer(Drawing):
    def __call__(self, x, y):
        share = self.rng.betavariate(2, 2)
        other = self.rng.sample(range(len(x)), len(x))
        return share * x + (1 - share) * x[other], share * y + (1 - share) * y[other]


r = np.random.RandomState(23)
rows = []
for _ in range(8):
    x = np.cumsum(r.randn(6, 9), 1).astype(np.float32) / 3
    rows.append((x, x.mean(1, keepdims=True)))
net = nn.SequentialCell(nn.Dense(6, 8), nn.Tanh(), nn.Dense(8, 1))
loss = nn.WithLossCell(net, nn.MSELoss())
cell = ck.AccumulationTrainCell(loss, nn.Adam(loss.trainable_params(), 0.02), accumulation_steps=1).set_train()
rng = random.Random(23)
crop, mix = Cropper(rng), Mixer(rng)

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches, crop=crop, mix=mix)
    manager.restore(state)
    for x, y in batches:
        x, y = mix(crop(x, 6), y)
        cell(ms.Tensor(x.astype(np.float32)), ms.Tensor(y.astype(np.float32)))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
