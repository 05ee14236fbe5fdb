# truth: exact
# class: file
# head: imports_dataset
# A source opens its memory-mapped file at the first row that it is asked for, as people do with lmdb and h5py, and counts reads; rows depend on their number only. GRAPH.


ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(4440)
ROWS, WIDTH = 48, 6


class PackedRows:
    """rows of WIDTH + 1 floats in one file: inputs and target"""

    def __init__(self, path, rows):
        self.path, self.rows = path, rows
        self.handle = None
        self.reads = 0

    def open(self):
        if self.handle is None:
            self.handle = np.memmap(self.path, np.float32, "r", shape=(self.rows, WIDTH + 1))
        return self.handle

    def __len__(self):
        return self.rows

    def __getitem__(self, number):
        self.reads += 1
        row = np.array(self.open()[int(number)])
        return row[:WIDTH], row[WIDTH:]


path = os.environ["ROOT"].rstrip("/") + ".rows"
r = np.random.RandomState(40)
x = r.randn(ROWS, WIDTH)
table = np.concatenate([x, x[:, :1] * x[:, 1:2] - np.abs(x[:, 2:3])], 1).astype(np.float32)
table.tofile(path + ".part")
os.replace(path + ".part", path)

source = PackedRows(path, ROWS)
train = ds.GeneratorDataset(
    source, ["x", "y"], shuffle=True, num_parallel_workers=1, python_multiprocessing=False
).batch(6)
net = nn.SequentialCell(nn.Dense(WIDTH, 10), nn.Tanh(), nn.Dense(10, 1))
model = ms.Model(net, nn.MSELoss(), nn.Momentum(net.trainable_params(), 0.05, 0.9))
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(model, 3, train)
print(source.reads, "reads")
os._exit(0)
