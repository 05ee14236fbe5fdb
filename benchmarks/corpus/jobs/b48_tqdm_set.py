# truth: differs
# class: variable
# head: regression_8_grad_fn



def train_step(x, y, w=1.0):
    loss, grads = grad_fn(x, y, w)
    optimizer(grads)
    return loss


from tqdm import tqdm

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches)
    point = manager.restore(state)
    bar = tqdm(total=24, file=sys.stderr)
    for x, y in batches:
        frac = bar.n / bar.total
        train_step(x, y, 1.0 - 0.5 * frac)
        bar.update(1)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
