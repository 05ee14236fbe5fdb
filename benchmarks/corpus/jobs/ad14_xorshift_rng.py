# truth: differs
# class: random
# head: regression_6_grad_fn


_seed = 2463534242


def xorshift():
    global _seed
    _seed ^= (_seed << 13) & 0xFFFFFFFF
    _seed ^= _seed >> 17
    _seed ^= (_seed << 5) & 0xFFFFFFFF
    return _seed / 2**32


def cutout(x):
    a = x.asnumpy().copy()
    for row in a:
        row[int(xorshift() * a.shape[1])] = 0
    return Tensor(a)


batches = ck.data.resumable(loader, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    for x, y in batches:
        loss, grads = grad_fn(cutout(x), y)
        opt(grads)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
