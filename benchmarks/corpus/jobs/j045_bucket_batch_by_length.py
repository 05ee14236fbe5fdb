# truth: exact
# class: data
# head: pynative_dataset_ops
# Sequences of two kinds of length go through MindSpore's bucket_batch_by_length with padding; nothing is kept by the script, K = 3.

ms.set_seed(3145)
ds.config.set_num_parallel_workers(1)

r = np.random.RandomState(45)
rows = []
for i in range(32):
    n = r.randint(2, 5) if i % 2 else r.randint(6, 9)
    s = r.randn(n).astype(np.float32)
    rows.append((s, np.array([s.mean()], np.float32)))


class MaskedMean(nn.Cell):
    def __init__(self):
        super().__init__()
        self.lift = nn.Dense(1, 6)
        self.out = nn.Dense(6, 1)

    def construct(self, s, y):
        mask = (ops.abs(s) > 0).astype(ms.float32)[:, :, None]
        h = ops.tanh(self.lift(s[:, :, None])) * mask
        return ((self.out(h.sum(1) / mask.sum(1)) - y) ** 2).mean()


dataset = ds.GeneratorDataset(rows, ["s", "y"], shuffle=False, num_parallel_workers=1).bucket_batch_by_length(
    ["s"], [6], [4, 4], element_length_function=lambda s: s.shape[0], pad_info={"s": ([9], 0.0)}
)
loss = MaskedMean()
cell = ck.AccumulationTrainCell(loss, nn.Adam(loss.trainable_params(), 0.05), 3, clip_norm=1.0)
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(ms.Model(cell), 3, dataset)
os._exit(0)
