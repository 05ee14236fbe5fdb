# truth: exact
# class: random
# head: imports_hashlib
# The noise on a batch is drawn from a generator seeded by the batch's own SHA-256 and the epoch, so there is nothing to remember.


ms.set_seed(52)


def rng_of(x, epoch):
    digest = hashlib.sha256(x.tobytes())
    digest.update(str(epoch).encode())
    return np.random.default_rng(int.from_bytes(digest.digest()[:8], "little"))


src = np.random.RandomState(2)
X = src.randn(64, 10).astype(np.float32)
T = np.maximum(X[:, :1], X[:, 1:2]).astype(np.float32)
rows = [(X[i : i + 8], T[i : i + 8]) for i in range(0, 64, 8)]

net = nn.SequentialCell(nn.Dense(10, 8), nn.LeakyReLU(0.1), nn.Dense(8, 1))
cell = ck.AccumulationTrainCell(
    nn.WithLossCell(net, nn.MSELoss()), nn.Adam(net.trainable_params(), 0.005), 1, clip_norm=0.5
).set_train()

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches)
    manager.restore(state)
    seen = hashlib.md5()
    for x, t in batches:
        noise = rng_of(x, batches.epoch).normal(0, 0.3, x.shape).astype(np.float32)
        cell(ms.Tensor(x + noise), ms.Tensor(t))
        seen.update(noise.tobytes())  # to compare the logs of two machines
        manager.step(state)
        print("noise so far", seen.hexdigest()[:12])
    manager.save_final(state)
os._exit(0)
