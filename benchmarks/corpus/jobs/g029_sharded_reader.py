# truth: exact
# class: data
# head: imports
# A reader over shards with state_dict: epoch, shard and offset; the order of the shards follows the epoch.


ms.set_seed(44)


class ShardReader:
    SHARDS, PER_SHARD, BATCH = 4, 12, 6

    def __init__(self):
        self.epoch = 0
        self.shard = 0
        self.offset = 0

    # --- ckptkit -----------------------------------------------------------
    def state_dict(self):
        return {"epoch": self.epoch, "shard": self.shard, "offset": self.offset}

    def load_state_dict(self, state):
        self.epoch, self.shard, self.offset = state["epoch"], state["shard"], state["offset"]

    # --- reading -----------------------------------------------------------
    def _read(self, number):
        rs = np.random.RandomState(1000 + number)
        x = rs.randn(self.PER_SHARD, 7).astype(np.float32)
        return x, np.sin(x[:, :1] + number).astype(np.float32)

    def __iter__(self):
        if self.shard == self.SHARDS:
            self.epoch, self.shard, self.offset = self.epoch + 1, 0, 0
        order = np.random.RandomState(self.epoch).permutation(self.SHARDS)
        while self.shard < self.SHARDS:
            x, y = self._read(int(order[self.shard]))
            lo = self.offset
            batch = ms.Tensor(x[lo : lo + self.BATCH]), ms.Tensor(y[lo : lo + self.BATCH])
            self.offset += self.BATCH
            if self.offset >= self.PER_SHARD:
                self.shard, self.offset = self.shard + 1, 0
            yield batch


net = nn.SequentialCell(nn.Dense(7, 12), nn.Tanh(), nn.Dense(12, 1))
cell = ck.AccumulationTrainCell(
    nn.WithLossCell(net, nn.MSELoss()), nn.Momentum(net.trainable_params(), 0.05, 0.9), accumulation_steps=2
)
cell.set_train()

batches = ck.data.resumable(ShardReader(), epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches)
    point = manager.restore(state)
    if point.checkpoint:
        print("continuing from", point.checkpoint)
    for x, y in batches:
        cell(x, y)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
