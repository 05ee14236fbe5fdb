# truth: exact, may be named
# class: attribute
# head: imports_dataset
# NumPy scratch arrays live as long as the program and are filled by out=, but each batch overwrites them before it reads them.


ms.set_seed(90)
SIZE, WIDTH = 8, 6


class FeatureMaker:
    """polynomial features without allocating in the loop"""

    def __init__(self):
        self.square = np.empty((SIZE, WIDTH), np.float32)
        self.wide = np.empty((SIZE, 2 * WIDTH), np.float32)
        self.mean = np.empty((1, WIDTH), np.float32)

    def __call__(self, x):
        np.mean(x, axis=0, keepdims=True, out=self.mean)
        np.subtract(x, self.mean, out=self.wide[:, :WIDTH])
        np.multiply(x, x, out=self.square)
        np.clip(self.square, 0.0, 4.0, out=self.square)
        self.wide[:, WIDTH:] = self.square
        return ms.Tensor(self.wide.copy())


r = np.random.RandomState(72)
x = r.randn(64, WIDTH).astype(np.float32)
y = (x[:, :1] ** 2 - x[:, 1:2]).astype(np.float32)
dataset = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=True).batch(SIZE)

net = nn.SequentialCell(nn.Dense(2 * WIDTH, 6), nn.ReLU(), nn.Dense(6, 1))
cell = ck.AccumulationTrainCell(
    nn.WithLossCell(net, nn.MSELoss()), nn.Momentum(net.trainable_params(), 0.02, 0.9), 4
).set_train()
make = FeatureMaker()

batches = ck.data.resumable(dataset, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches)
    manager.restore(state)
    for inputs, target in batches:
        cell(make(inputs.asnumpy()), target)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
