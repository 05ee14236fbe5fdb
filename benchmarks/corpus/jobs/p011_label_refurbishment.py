# truth: differs
# class: global
# head: pynative
# Noisy labels are refurbished during training; the soft labels live in a file on disk, because the real set is large.

ms.set_seed(111)

r = np.random.RandomState(11)
true = r.randint(0, 4, 60)
x = (r.randn(60, 8) + np.eye(4).repeat(2, 1)[true] * 1.5).astype(np.float32)
noisy = np.where(r.rand(60) < 0.3, r.randint(0, 4, 60), true)

path = os.environ["ROOT"] + "-soft-labels.dat"
os.makedirs(os.path.dirname(path), exist_ok=True)
if not os.path.exists(path):
    first = np.memmap(path, np.float32, "w+", shape=(60, 4))
    first[:] = np.eye(4)[noisy]
    first.flush()
soft = np.memmap(path, np.float32, "r+", shape=(60, 4))

net = nn.SequentialCell(nn.Dense(8, 20), nn.ReLU(), nn.Dense(20, 4))
optimizer = nn.Adam(net.trainable_params(), 5e-3)
ce = nn.SoftmaxCrossEntropyWithLogits(sparse=False, reduction="mean")


def forward(xb, yb):
    logits = net(xb)
    return ce(logits, yb), logits


grad_fn = ms.value_and_grad(forward, None, net.trainable_params(), has_aux=True)
rows = [np.random.RandomState(i).choice(60, 6, replace=False) for i in range(10)]
batches = ck.data.resumable(rows, epochs=4)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, optimizer], batches)
    manager.restore(state)
    for numbers in batches:
        numbers = np.asarray(numbers)
        (loss, logits), grads = grad_fn(ms.Tensor(x[numbers]), ms.Tensor(np.array(soft[numbers])))
        optimizer(grads)
        p = np.exp(logits.asnumpy() - logits.asnumpy().max(1, keepdims=True))
        soft[numbers] = 0.9 * soft[numbers] + 0.1 * p / p.sum(1, keepdims=True)
        manager.step(state)
    soft.flush()
    manager.save_final(state)
os._exit(0)
