# truth: exact
# class: random
# head: imports_random
# An augmenter stores random.Random.getstate() taken apart: version, the 625 words as an array, and the gauss number that waits; GRAPH mode, K = 3.


ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(4318)


class Augmenter:
    OPERATIONS = ("flip", "shift", "scale", "none")

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.used = dict.fromkeys(self.OPERATIONS, 0)  # for a table at the end

    def __call__(self, x):
        operation = self.rng.choice(self.OPERATIONS)
        self.used[operation] += 1
        strength = self.rng.gauss(0.5, 0.2)
        if operation == "flip":
            x = x[:, ::-1]
        elif operation == "shift":
            x = np.roll(x, self.rng.randrange(1, x.shape[1]), 1)
        elif operation == "scale":
            x = x * (1 + strength)
        return np.ascontiguousarray(x + 0.05 * self.rng.gauss(0, 1), np.float32)

    def state_dict(self):
        version, words, waiting = self.rng.getstate()
        return {"version": version, "words": np.array(words, np.int64), "waiting": waiting}

    def load_state_dict(self, state):
        words = tuple(int(word) for word in state["words"])
        self.rng.setstate((state["version"], words, state["waiting"]))


r = np.random.RandomState(18)
rows = [(x, np.abs(x).sum(1, keepdims=True)) for x in r.randn(8, 6, 5).astype(np.float32)]
net = nn.SequentialCell(nn.Dense(5, 8), nn.ReLU(), nn.Dense(8, 1))
loss = nn.WithLossCell(net, nn.MSELoss())
cell = ck.AccumulationTrainCell(loss, nn.Adam(loss.trainable_params(), 0.02), accumulation_steps=3).set_train()
augment = Augmenter(18)

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches, augment=augment)
    manager.restore(state)
    for x, y in batches:
        cell(ms.Tensor(augment(x)), ms.Tensor(y))
        manager.step(state)
    manager.save_final(state)
    print(augment.used)
os._exit(0)
