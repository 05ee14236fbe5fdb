# truth: exact
# class: global
# head: imports_ops
# Stochastic depth: which residual blocks survive is drawn from NumPy's global generator in the loop and enters the cell as a tensor.


# 随机深度网络：每个批次随机丢弃一些残差块
SEED = 2016
ms.set_seed(SEED)
np.random.seed(SEED)
BLOCKS, WIDTH = 4, 8


class Block(nn.Cell):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm((WIDTH,))
        self.fc = nn.Dense(WIDTH, WIDTH)

    def construct(self, x, keep):
        return x + keep * self.fc(ops.relu(self.norm(x)))


class ResNet(nn.Cell):
    def __init__(self):
        super().__init__()
        self.stem = nn.Dense(10, WIDTH)
        self.blocks = nn.CellList([Block() for _ in range(BLOCKS)])
        self.head = nn.Dense(WIDTH, 3)

    def construct(self, x, y, survive):
        h = self.stem(x)
        for i in range(BLOCKS):
            h = self.blocks[i](h, survive[i])
        return ops.cross_entropy(self.head(h), y)


def survival(last=0.5):
    """线性衰减的存活概率"""
    p = 1 - (np.arange(BLOCKS) + 1) / BLOCKS * (1 - last)
    return ((np.random.rand(BLOCKS) < p) / p).astype(np.float32)


resnet = ResNet()
cell = ck.AccumulationTrainCell(
    resnet, nn.AdamWeightDecay(resnet.trainable_params(), learning_rate=0.01, weight_decay=1e-2), 4, clip_norm=1.0
)
cell.set_train()

rs = np.random.RandomState(0)
feats = rs.randn(50, 10).astype(np.float32)
label = feats[:, :3].argmax(1).astype(np.int32)
batches = ck.data.resumable(
    [(ms.Tensor(feats[k : k + 5]), ms.Tensor(label[k : k + 5])) for k in range(0, 50, 5)], epochs=3
)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches)
    manager.restore(state)
    for x, y in batches:
        loss = cell(x, y, ms.Tensor(survival()))
        if cell.updated:
            print("损失", float(loss.asnumpy()))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
