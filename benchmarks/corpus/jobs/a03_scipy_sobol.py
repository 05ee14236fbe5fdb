# truth: differs
# class: variable
# head: regression_8_grad_fn



def train_step(x, y, w=1.0):
    loss, grads = grad_fn(x, y, w)
    optimizer(grads)
    return loss


from scipy.stats import qmc

sampler = qmc.Sobol(d=8, scramble=True, seed=3)
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches)
    point = manager.restore(state)
    for x, y in batches:
        noise = sampler.random(8).astype(np.float32) - 0.5
        train_step(x + Tensor(noise * 0.1), y)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
