# truth: exact
# class: random
# head: imports
# RandAugment on small images: operations and magnitudes come from one generator given by name, the maximal magnitude from the epoch.


ms.set_seed(338)

OPS = {
    "flip": lambda im, m: im[..., ::-1],
    "shift": lambda im, m: np.roll(im, int(round(4 * m)), -1),
    "contrast": lambda im, m: (im - im.mean()) * (1 + m) + im.mean(),
    "invert": lambda im, m: im * (1 - m) + (1 - im) * m,
    "cutout": lambda im, m: np.where(np.arange(im.shape[-1]) < int(8 * m), 0.0, im),
}


class RandAugment:
    def __init__(self, n, rng):
        self.n, self.rng = n, rng

    def __call__(self, image, limit):
        for name in self.rng.choice(sorted(OPS), self.n, replace=False):
            image = OPS[str(name)](image, self.rng.uniform(0, limit))
        return image.astype(np.float32)


net = nn.SequentialCell(nn.Flatten(), nn.Dense(64, 12), nn.ReLU(), nn.Dense(12, 2))
opt = nn.Momentum(net.trainable_params(), 0.05, 0.9)
mse = nn.MSELoss()
vg = ms.value_and_grad(lambda x, y: mse(net(x), y), None, net.trainable_params())
rng = np.random.default_rng(38)
augment = RandAugment(2, rng)
r = np.random.RandomState(0)
rows = []
for _ in range(8):
    im = r.rand(5, 1, 8, 8).astype(np.float32)
    rows.append((im, np.stack([im.mean((1, 2, 3)), im[:, 0, 0, 0]], 1).astype(np.float32)))

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches, rng=rng)
    manager.restore(state)
    for images, y in batches:
        limit = 0.2 + 0.3 * batches.epoch
        x = np.stack([augment(im, limit) for im in images])
        loss, grads = vg(ms.Tensor(np.ascontiguousarray(x)), ms.Tensor(y))
        opt(grads)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
