# truth: differs
# class: random
# head: regression_8_train_step



def make_noise(seed, scale):
    rng = np.random.default_rng(seed)

    def noise(shape):
        return Tensor((rng.normal(size=shape) * scale).astype(np.float32))

    return noise


noise = make_noise(7, 0.01)
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches)
    point = manager.restore(state)
    for x, y in batches:
        loss, grads = grad_fn(x, y)
        optimizer(tuple(v + noise(v.shape) for v in grads))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
