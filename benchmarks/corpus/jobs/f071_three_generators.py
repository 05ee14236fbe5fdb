# truth: exact
# class: random
# head: imports_random_ops
# DropBlock masks, input jitter and batch order of views come from three generators that are given by name.


ms.set_seed(34)

mask_rng = np.random.default_rng(1)
jitter_rng = np.random.RandomState(2)
view_rng = random.Random(3)


def drop_block(batch, size, keep=2):
    mask = np.ones((batch, 4, size, size), np.float32)
    for b in range(batch):
        for _ in range(keep):
            i, j = mask_rng.integers(0, size - 1, 2)
            mask[b, :, i : i + 2, j : j + 2] = 0
    return mask * (mask.size / max(1.0, mask.sum()))


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.fc = nn.Dense(4 * 25, 2)

    def construct(self, x, mask, y):
        h = ops.relu(self.conv(x)) * mask
        return ops.cross_entropy(self.fc(h.reshape(h.shape[0], -1)), y)


def views(x):
    flips = [lambda v: v, lambda v: v[..., ::-1], lambda v: v[..., ::-1, :]]
    view_rng.shuffle(flips)
    return np.ascontiguousarray(flips[0](x) + 0.5 * flips[1](x), dtype=np.float32)


r = np.random.RandomState(34)
images = r.rand(8, 5, 1, 5, 5).astype(np.float32)
labels = (images.mean((2, 3, 4)) > 0.5).astype(np.int32)
net = Net()
cell = ck.AccumulationTrainCell(net, nn.Adam(net.trainable_params(), 0.01), 2, clip_norm=1.0).set_train()
batches = ck.data.resumable(list(zip(images, labels)), epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches, masks=mask_rng, jitter=jitter_rng, views=view_rng)
    manager.restore(state)
    for image, label in batches:
        x = views(image) + jitter_rng.normal(0, 0.05, image.shape).astype(np.float32)
        cell(ms.Tensor(x), ms.Tensor(drop_block(len(x), 5)), ms.Tensor(label))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
