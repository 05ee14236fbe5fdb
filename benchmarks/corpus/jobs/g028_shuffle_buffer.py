# truth: exact
# class: data
# head: imports_random_ops
# A streaming loader with a shuffle buffer: everything is made in __iter__ from a fixed seed, so ckptkit can replay it.


ms.set_seed(90)


class StreamingLoader:
    """Like IterableDataset + shuffle buffer + collate, but each __iter__ begins anew."""

    def __init__(self, records, buffer_size, batch_size, seed):
        self.records = records
        self.buffer_size = buffer_size
        self.batch_size = batch_size
        self.seed = seed

    def __len__(self):
        return len(self.records) // self.batch_size

    def _shuffled(self):
        rng = random.Random(self.seed)
        buffer = []
        for record in self.records:
            if len(buffer) < self.buffer_size:
                buffer.append(record)
                continue
            k = rng.randrange(self.buffer_size)
            buffer[k], record = record, buffer[k]
            yield record
        rng.shuffle(buffer)
        yield from buffer

    def __iter__(self):
        batch = []
        for record in self._shuffled():
            batch.append(record)
            if len(batch) == self.batch_size:
                xs, ys = zip(*batch)
                yield ms.Tensor(np.stack(xs)), ms.Tensor(np.array(ys, np.int32))
                batch = []


r = np.random.RandomState(12)
records = []
for _ in range(54):
    x = r.randn(6).astype(np.float32)
    records.append((x, int(x.sum() > 0)))


class Classifier(nn.Cell):
    def __init__(self):
        super().__init__()
        self.body = nn.SequentialCell(nn.Dense(6, 10), nn.LayerNorm((10,)), nn.ReLU(), nn.Dense(10, 2))

    def construct(self, x, y):
        return ops.cross_entropy(self.body(x), y)


net = Classifier()
cell = ck.AccumulationTrainCell(net, nn.Adam(net.trainable_params(), 0.01), 3, remainder="flush").set_train()
batches = ck.data.resumable(StreamingLoader(records, 10, 6, seed=4), epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches)
    manager.restore(state)
    for x, y in batches:
        loss = cell(x, y)
        manager.step(state, {"loss": loss})
    manager.save_final(state)
os._exit(0)
