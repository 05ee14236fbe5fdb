# truth: differs
# class: file
# head: imports_hashlib_dataset
# The difficulty of each sample is in a np.memmap file in the working folder, updated in place after each batch.


ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(27)
N = 48
r = np.random.RandomState(17)
x = r.randn(N, 6).astype(np.float32)
y = (x.prod(1, keepdims=True)).astype(np.float32)
scores = np.memmap("scores.bin", dtype=np.float32, mode="w+", shape=(N, 1))
scores[:] = 1.0

data = ds.NumpySlicesDataset((np.arange(N), x, y), ["i", "x", "y"], shuffle=True).batch(6)
net = nn.SequentialCell(nn.Dense(6, 16), nn.Tanh(), nn.Dense(16, 1))
opt = nn.Adam(net.trainable_params(), 0.01)


def forward(a, b, w):
    each = (net(a) - b).abs()
    return (w * each).sum() / w.sum(), each


grad_fn = ms.value_and_grad(forward, None, opt.parameters, has_aux=True)
batches = ck.data.resumable(data, epochs=4)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    for i, a, b in batches:
        i = i.asnumpy()
        (loss, each), grads = grad_fn(a, b, ms.Tensor(np.array(scores[i])))
        opt(grads)
        scores[i] = 0.5 * scores[i] + 0.5 * each.asnumpy()
        manager.step(state)
    manager.save_final(state)
print(hashlib.sha256(b"".join(p.asnumpy().tobytes() for p in net.get_parameters())).hexdigest(), flush=True)
os._exit(0)
