# truth: refused
# class: data
# head: imports
# A loader mixes clean and noisy rows, three to one: for each batch a generator decides the source. Its state_dict has the places in both sources, but not the generator. GRAPH mode.


ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(3551)


class MixedLoader:
    def __init__(self, clean, noisy, share, batches, seed):
        self.sources = {"clean": clean, "noisy": noisy}
        self.share, self.batches = share, batches
        self.rng = np.random.default_rng(seed)
        self.served = 0
        self.place = {"clean": 0, "noisy": 0}

    def __len__(self):
        return self.batches

    def take(self, name):
        rows = self.sources[name]
        row = rows[self.place[name] % len(rows)]
        self.place[name] += 1
        return row

    def __iter__(self):
        end = (self.served // self.batches + 1) * self.batches
        while self.served < end:
            name = "clean" if self.rng.random() < self.share else "noisy"
            self.served += 1
            yield self.take(name)

    def state_dict(self):
        return {"served": self.served, "place": dict(self.place)}

    def load_state_dict(self, state):
        self.served, self.place = state["served"], dict(state["place"])


def source(seed, rows, noise):
    r = np.random.RandomState(seed)
    out = []
    for _ in range(rows):
        x = r.randn(6, 5).astype(np.float32)
        y = x[:, :1] * x[:, 1:2] + x[:, 3:4] + noise * r.randn(6, 1)
        out.append((x, y.astype(np.float32)))
    return out


net = nn.SequentialCell(nn.Dense(5, 10), nn.Tanh(), nn.Dense(10, 1))
loss = nn.WithLossCell(net, nn.MSELoss())
cell = ck.AccumulationTrainCell(loss, nn.Momentum(net.trainable_params(), 0.05, 0.9), accumulation_steps=1).set_train()
loader = MixedLoader(source(51, 7, 0.0), source(52, 5, 1.5), share=0.75, batches=10, seed=51)

batches = ck.data.resumable(loader, epochs=4)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches)
    manager.restore(state)
    for x, y in batches:
        cell(ms.Tensor(np.asarray(x)), ms.Tensor(np.asarray(y)))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
