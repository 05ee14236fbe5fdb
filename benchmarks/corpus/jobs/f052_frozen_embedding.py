# truth: exact
# class: attribute
# head: imports_dataset_ops
# A frozen embedding table, a list of learning rates per step, FTRL on the rest; frozen= names the table.


ms.set_seed(18)
ms.set_context(mode=ms.GRAPH_MODE)

STEPS_PER_EPOCH, EPOCHS, K = 10, 3, 2


class WideDeep(nn.Cell):
    """推荐模型：嵌入表不训练。"""

    def __init__(self, items=20, dim=6):
        super().__init__()
        self.table = nn.Embedding(items, dim)
        self.table.embedding_table.requires_grad = False
        self.wide = nn.Dense(4, 1)
        self.deep = nn.SequentialCell(nn.Dense(dim, 8), nn.ReLU(), nn.Dense(8, 1))

    def construct(self, item, dense):
        emb = self.table(item).mean(1)
        return self.wide(dense) + self.deep(emb)


class Criterion(nn.Cell):
    def __init__(self, net):
        super().__init__(auto_prefix=False)
        self.net = net
        self.loss = nn.MSELoss()

    def construct(self, item, dense, click):
        return self.loss(ops.sigmoid(self.net(item, dense)), click)


def rows():
    r = np.random.RandomState(18)
    item = r.randint(0, 20, (60, 3)).astype(np.int32)
    dense = r.randn(60, 4).astype(np.float32)
    click = (dense[:, :1] + (item[:, :1] > 9) > 0.5).astype(np.float32)
    return {"item": item, "dense": dense, "click": click}


dataset = ds.NumpySlicesDataset(rows(), shuffle=True).batch(6, drop_remainder=True)
network = Criterion(WideDeep())
updates = STEPS_PER_EPOCH * EPOCHS // K
rates = nn.piecewise_constant_lr([updates // 3, 2 * updates // 3, updates], [0.1, 0.05, 0.01])
optimizer = nn.Momentum(network.trainable_params(), learning_rate=rates, momentum=0.9, weight_decay=1e-4)
cell = ck.AccumulationTrainCell(network, optimizer, accumulation_steps=K)
ckpt = ck.CheckpointCallback(
    os.environ["ROOT"],
    save=ck.SaveEvery(micro_steps=5),
    saving=ck.Saving(when_busy="wait"),
    frozen=lambda name: "embedding_table" in name,
)
ckpt.train(ms.Model(cell), EPOCHS, dataset)
os._exit(0)
