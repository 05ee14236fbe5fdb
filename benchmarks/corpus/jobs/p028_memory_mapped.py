# truth: exact
# class: file
# head: imports_dataset
# Features in a memory-mapped file that the first start writes and every start reads.


ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(128)

ROWS, WIDTH = 96, 8
path = os.environ["ROOT"] + "-features.npy"
if not os.path.exists(path):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    r = np.random.RandomState(28)
    np.save(path + ".part.npy", r.randn(ROWS, WIDTH + 1).astype(np.float32))
    os.replace(path + ".part.npy", path)


class MappedFeatures:
    def __init__(self, path):
        self.rows = np.load(path, mmap_mode="r")

    def __getitem__(self, index):
        row = np.array(self.rows[index])
        return row[:WIDTH], np.tanh(row[:1] - row[1:2]) + 0.1 * row[WIDTH:]

    def __len__(self):
        return len(self.rows)


train = ds.GeneratorDataset(MappedFeatures(path), ["x", "y"], shuffle=True, num_parallel_workers=1).batch(8)
net = nn.SequentialCell(nn.Dense(WIDTH, 16), nn.ReLU(), nn.Dense(16, 1))
loss = nn.WithLossCell(net, nn.MSELoss())
optimizer = nn.AdamWeightDecay(net.trainable_params(), 5e-3, weight_decay=0.01)
cell = ck.AccumulationTrainCell(loss, optimizer, accumulation_steps=4, clip_norm=1.0)

ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(ms.Model(cell), 4, train)
os._exit(0)
