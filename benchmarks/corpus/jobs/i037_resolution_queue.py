# truth: differs
# class: attribute
# head: imports_deque
# Progressive resizing: the resolutions of the coming epochs wait in a deque, and popleft() is called whenever the epoch changes; each start begins with the smallest.


ms.set_seed(337)


def resize(images, size):
    """nearest neighbour"""
    at = (np.arange(size) * images.shape[-1] / size).astype(int)
    return np.ascontiguousarray(images[:, :, at][:, :, :, at])


class GlobalPool(nn.Cell):
    def construct(self, x):
        return x.mean((2, 3))


net = nn.SequentialCell(nn.Conv2d(1, 4, 3, pad_mode="same"), nn.ReLU(), GlobalPool(), nn.Dense(4, 2))
mse = nn.MSELoss()
cell = ck.AccumulationTrainCell(
    nn.WithLossCell(net, mse), nn.Momentum(net.trainable_params(), 0.05, 0.9), 1
).set_train()
r = np.random.RandomState(37)
rows = []
for _ in range(8):
    images = r.rand(4, 1, 12, 12).astype(np.float32)
    rows.append((images, np.stack([images[:, 0, :6].mean((1, 2)), images.max((1, 2, 3))], 1).astype(np.float32)))

upcoming = deque([4, 8, 12])
size = upcoming.popleft()
current = None
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches)
    manager.restore(state)
    for images, target in batches:
        if current is not None and batches.epoch != current and upcoming:
            size = upcoming.popleft()
        current = batches.epoch
        cell(ms.Tensor(resize(images, size)), ms.Tensor(target))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
