# truth: exact
# class: data
# head: pynative
# Three corpora are mixed by credits (the one with the most goes next); credits and cursors are attributes of the loader, but each iteration begins them anew.

ms.set_seed(4344)


class Corpus:
    def __init__(self, seed, count, slope):
        r = np.random.RandomState(seed)
        self.x = r.randn(count, 4).astype(np.float32)
        self.y = (slope * self.x[:, :1] + self.x[:, 1:2] * self.x[:, 2:3]).astype(np.float32)

    def __len__(self):
        return len(self.x)


class CreditMix:
    """smooth weighted round robin, as in a load balancer"""

    def __init__(self, corpora, weights, size, batches):
        self.corpora, self.weights, self.size, self.batches = corpora, np.array(weights), size, batches
        self.reset()

    def reset(self):
        self.credit = np.zeros(len(self.corpora))
        self.cursor = [0] * len(self.corpora)
        self.drawn = [0] * len(self.corpora)

    def row(self):
        self.credit += self.weights
        k = int(self.credit.argmax())
        self.credit[k] -= self.weights.sum()
        i = self.cursor[k]
        self.cursor[k] = (i + 1) % len(self.corpora[k])
        self.drawn[k] += 1
        return self.corpora[k].x[i], self.corpora[k].y[i]

    def __len__(self):
        return self.batches

    def __iter__(self):
        self.reset()
        for _ in range(self.batches):
            xs, ys = zip(*(self.row() for _ in range(self.size)))
            yield np.stack(xs), np.stack(ys)


mix = CreditMix([Corpus(1, 30, 1.0), Corpus(2, 9, -1.0), Corpus(3, 5, 0.2)], [5, 3, 1], size=5, batches=8)
net = nn.SequentialCell(nn.Dense(4, 8), nn.ReLU(), nn.Dense(8, 1))
loss = nn.WithLossCell(net, nn.MSELoss())
cell = ck.AccumulationTrainCell(loss, nn.Adam(loss.trainable_params(), 0.03), accumulation_steps=3).set_train()

batches = ck.data.resumable(mix, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches)
    manager.restore(state)
    for x, y in batches:
        cell(ms.Tensor(x), ms.Tensor(y))
        manager.step(state)
    manager.save_final(state)
    print("rows of each corpus in the last epoch:", mix.drawn)
os._exit(0)
