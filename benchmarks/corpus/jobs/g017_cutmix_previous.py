# truth: differs
# class: random
# head: imports_ops
# CutMix with the batch before: a generator around the batches remembers the previous one and pastes half of its images.


ms.set_seed(77)
r = np.random.RandomState(9)
IMGS = r.rand(40, 1, 8, 8).astype(np.float32)
LABELS = (IMGS[:, 0, 2:6, 2:6].mean((1, 2)) > 0.5).astype(np.int64)


def one_hot(y, n=2):
    return np.eye(n, dtype=np.float32)[y]


def cutmix(stream, ratio=0.5):
    """yields mixed batches; the first one stays as it is"""
    last = None
    for x, y in stream:
        if last is None:
            mixed, target = x, y
        else:
            width = int(8 * ratio)
            mixed = np.concatenate([x[..., :width], last[0][..., width:]], axis=-1)
            target = ratio * y + (1 - ratio) * last[1]
        last = (x, y)
        yield ms.Tensor(mixed.astype(np.float32)), ms.Tensor(target.astype(np.float32))


backbone = nn.SequentialCell(
    nn.Conv2d(1, 4, 3, stride=2, pad_mode="same", has_bias=True), nn.ReLU(), nn.Flatten(), nn.Dense(4 * 16, 2)
)
optimizer = nn.Adam(backbone.trainable_params(), learning_rate=0.01)


def soft_ce(x, t):
    logp = ops.log_softmax(backbone(x), 1)
    return -(t * logp).sum(1).mean()


step_fn = ms.value_and_grad(soft_ce, None, backbone.trainable_params())
loader = [(IMGS[i : i + 5], one_hot(LABELS[i : i + 5])) for i in range(0, 40, 5)]
batches = ck.data.resumable(loader, epochs=3)

with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([backbone, optimizer], batches)
    manager.restore(state)
    for x, t in cutmix(batches):
        loss, grads = step_fn(x, t)
        optimizer(grads)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
