# truth: refused
# class: iterator
# head: imports_hashlib
# The batches come from a generator function that can only be read once.


ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(43)


def stream(n):
    r = np.random.RandomState(33)
    for _ in range(n):
        a = r.randn(4, 3).astype(np.float32)
        yield ms.Tensor(a), ms.Tensor(a.sum(1, keepdims=True))


net = nn.SequentialCell(nn.Dense(3, 6), nn.ReLU(), nn.Dense(6, 1))
opt = nn.Adam(net.trainable_params(), 0.01)
mse = nn.MSELoss()
grad_fn = ms.value_and_grad(lambda a, b: mse(net(a), b), None, opt.parameters)
batches = ck.data.resumable(stream(30), epochs=1)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    for a, b in batches:
        loss, grads = grad_fn(a, b)
        opt(grads)
        manager.step(state)
    manager.save_final(state)
print(hashlib.sha256(b"".join(p.asnumpy().tobytes() for p in net.get_parameters())).hexdigest(), flush=True)
os._exit(0)
