# truth: exact
# class: data
# head: imports_deque
# A loader with read-ahead of two, in front of resumable(), and a cache of decoded samples; whatever it keeps is made again when it is iterated again.


ms.set_seed(355)


class CachedDataset:
    """decoding is slow, so every sample is decoded once per process"""

    def __init__(self, raw):
        self.raw, self._cache = raw, {}
        self.hits = self.misses = 0

    def __len__(self):
        return len(self.raw)

    def __getitem__(self, k):
        if k in self._cache:
            self.hits += 1
        else:
            self.misses += 1
            self._cache[k] = np.frombuffer(self.raw[k], np.uint8).astype(np.float32) / 255
        return self._cache[k]


class Prefetcher:
    def __init__(self, dataset, batch_size, depth=2):
        self.dataset, self.batch_size, self.depth = dataset, batch_size, depth

    def _batches(self):
        for k in range(0, len(self.dataset), self.batch_size):
            x = np.stack([self.dataset[j] for j in range(k, k + self.batch_size)])
            yield x, x.max(1, keepdims=True)

    def __len__(self):
        return len(self.dataset) // self.batch_size

    def __iter__(self):
        source, ready = self._batches(), deque()
        for batch in source:
            ready.append(batch)
            if len(ready) > self.depth:
                yield ready.popleft()
        yield from ready


r = np.random.RandomState(55)
dataset = CachedDataset([r.randint(0, 256, 6).astype(np.uint8).tobytes() for _ in range(32)])
net = nn.SequentialCell(nn.Dense(6, 8), nn.ReLU(), nn.Dense(8, 1))
cell = ck.AccumulationTrainCell(
    nn.WithLossCell(net, nn.MSELoss()), nn.Momentum(net.trainable_params(), 0.1, 0.9), 3, remainder="carry"
).set_train()
batches = ck.data.resumable(Prefetcher(dataset, 4), epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches)
    manager.restore(state)
    for x, y in batches:
        cell(ms.Tensor(x), ms.Tensor(y))
        manager.step(state)
    print("cache", dataset.hits, "hits", dataset.misses, "misses")
    manager.save_final(state)
os._exit(0)
