# truth: differs
# class: variable
# head: regression_8_grad_fn



def train_step(x, y, w=1.0):
    loss, grads = grad_fn(x, y, w)
    optimizer(grads)
    return loss


from scipy import stats

dist = stats.truncnorm(-2, 2)
dist.random_state = np.random.RandomState(11)
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches)
    point = manager.restore(state)
    for x, y in batches:
        train_step(x + Tensor((dist.rvs(size=(8, 8)) * 0.1).astype(np.float32)), y)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
