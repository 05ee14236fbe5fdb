# truth: differs
# class: global
# head: imports_random_ops
# The order of the samples is a list that random.shuffle mixes in place at each new epoch; the batches only hold places in it.


SEED = 13
ms.set_seed(SEED)
random.seed(SEED)
np.random.seed(SEED)

n, bs = 48, 6
X = np.random.randn(n, 9).astype(np.float32)
Y = (X[:, ::3].sum(1) > 0).astype(np.int32)

order = list(range(n))


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Dense(9, 8)
        self.fc2 = nn.Dense(8, 2)

    def construct(self, x, y):
        return ops.cross_entropy(self.fc2(ops.gelu(self.fc1(x))), y)


net = Net()
cell = ck.AccumulationTrainCell(net, nn.Adam(net.trainable_params(), learning_rate=0.02), 2)
cell.set_train()

slots = [(np.arange(i, i + bs),) for i in range(0, n, bs)]
batches = ck.data.resumable(slots, epochs=3)

with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches)
    manager.restore(state)
    running = 0.0
    for (slot,) in batches:
        if slot[0] == 0:  # new epoch
            random.shuffle(order)
            print("epoch", batches.epoch, "mean loss so far", running)
        picked = [order[i] for i in slot]
        loss = cell(ms.Tensor(X[picked]), ms.Tensor(Y[picked]))
        running = 0.9 * running + 0.1 * float(loss.asnumpy())
        manager.step(state)
    manager.save_final(state)
os._exit(0)
