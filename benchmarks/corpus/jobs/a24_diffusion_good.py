# truth: exact
# class: variable
# head: regression_8_train_step



betas = np.linspace(1e-4, 0.02, 50)
alphas_bar = np.cumprod(1 - betas).astype(np.float32)


def q_sample(x, t, noise):
    a = alphas_bar[t][:, None]
    return np.sqrt(a) * x + np.sqrt(1 - a) * noise


batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches)
    point = manager.restore(state)
    for x, y in batches:
        t = np.random.randint(0, 50, 8)
        noise = np.random.randn(8, 8).astype(np.float32)
        train_step(Tensor(q_sample(x.asnumpy(), t, noise)), y)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
