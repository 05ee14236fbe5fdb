# truth: differs
# class: attribute
# head: saving_dataset_parameter

ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(3)
rng0 = np.random.default_rng(11)
X = rng0.normal(size=(80, 6)).astype(np.float32)
Y = (X[:, :1] * 0.7 - X[:, 1:2] ** 2 + 0.1 * rng0.normal(size=(80, 1))).astype(np.float32)
loader = [(Tensor(X[i : i + 8]), Tensor(Y[i : i + 8])) for i in range(0, 80, 8)]
net = nn.SequentialCell(nn.Dense(6, 12), nn.Tanh(), nn.Dense(12, 1))


class Alternating(nn.Cell):
    def __init__(self, net):
        super().__init__(auto_prefix=False)
        params = net.trainable_params()
        self.body = nn.TrainOneStepCell(nn.WithLossCell(net, nn.MSELoss()), nn.SGD(params[:2], 0.05))
        self.head = nn.TrainOneStepCell(nn.WithLossCell(net, nn.MSELoss()), nn.SGD(params[2:], 0.05))
        self.turn = 0

    def __call__(self, x, y):
        self.turn += 1
        return self.body(x, y) if self.turn % 4 == 0 else self.head(x, y)


cell = Alternating(net)
cell.set_train()
batches = ck.data.resumable(loader, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager(cell, batches)
    manager.restore(state)
    for x, y in batches:
        cell(x, y)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
