# truth: exact
# class: variable
# head: regression_8_grad_fn



def train_step(x, y, w=1.0):
    loss, grads = grad_fn(x, y, w)
    optimizer(grads)
    return loss


from scipy import optimize, signal

kernel = signal.windows.gaussian(8, 2).astype(np.float32)


def calib(x):
    r = optimize.minimize_scalar(lambda s: float(((x - s) ** 2).sum()), bounds=(-2, 2), method="bounded")
    return np.float32(r.x)


batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches)
    point = manager.restore(state)
    for x, y in batches:
        a = x.asnumpy()
        train_step(Tensor((a - calib(a)) * kernel), y)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
