# truth: exact
# class: outside
# head: imports_dataset
# One process trains the second of two shards by MindSpore's DistributedSampler, as in a rehearsal for two machines; the order is seeded. GRAPH mode, K = 2, Model.train.


ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(4438)
SHARDS = int(os.environ.get("REHEARSED_SHARDS", "2"))


def make_data(batch):
    r = np.random.RandomState(38)
    x = r.randn(96, 5).astype(np.float32)
    y = (np.tanh(x[:, :1]) * x[:, 1:2] + 0.2 * r.randn(96, 1)).astype(np.float32)
    sampler = ds.DistributedSampler(num_shards=SHARDS, shard_id=SHARDS - 1, shuffle=True)
    data = ds.NumpySlicesDataset((x, y), ["x", "y"], sampler=sampler, num_parallel_workers=1)
    return data.batch(batch, drop_remainder=True)


net = nn.SequentialCell(nn.Dense(5, 12), nn.ReLU(), nn.Dense(12, 1))
loss = nn.WithLossCell(net, nn.MSELoss())
opt = nn.AdamWeightDecay(loss.trainable_params(), 0.01, weight_decay=0.01)
cell = ck.AccumulationTrainCell(loss, opt, accumulation_steps=2)
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(ms.Model(cell), 3, make_data(6))
os._exit(0)
