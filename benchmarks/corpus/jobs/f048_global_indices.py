# truth: exact
# class: global
# head: imports_ops
# Sample numbers from ck.data.GlobalIndices; crops depend on epoch and sample number only.


ms.set_seed(73)

digits = np.random.RandomState(73).rand(64, 8, 8).astype(np.float32)
answers = (digits[:, 2:6, 2:6].mean((1, 2)) > 0.5).astype(np.int32)


def crop(epoch, index, size=6):
    rng = ck.data.sample_rng(73, int(epoch), int(index))
    top, left = rng.integers(0, 8 - size + 1, size=2)
    image = digits[index, top : top + size, left : left + size]
    return image[:, ::-1] if rng.random() < 0.5 else image


class Conv(nn.Cell):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 4, 3)
        self.conv2 = nn.Conv2d(4, 6, 3, stride=2)
        self.fc = nn.Dense(54, 2)

    def construct(self, x, label):
        x = ops.relu(self.conv1(x))
        x = ops.relu(self.conv2(x))
        return ops.cross_entropy(self.fc(ops.flatten(x)), label)


net = Conv()
cell = ck.AccumulationTrainCell(net, nn.Momentum(net.trainable_params(), 0.1, 0.9), 2, remainder="flush")
cell.set_train()
order = ck.data.GlobalIndices(len(digits), global_batch=16, micro_batch=8, seed=7)
batches = ck.data.resumable(order, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches)
    manager.restore(state)
    for numbers in batches:
        epochs, indices = np.divmod(numbers, len(digits))
        image = np.stack([crop(e, i) for e, i in zip(epochs, indices)])[:, None]
        cell(ms.Tensor(np.ascontiguousarray(image)), ms.Tensor(answers[indices]))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
