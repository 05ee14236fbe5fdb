# truth: exact
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
    bar = tqdm(batches, total=24, initial=point.batches_delivered, file=sys.stderr)
    for x, y in bar:
        loss = train_step(x, y)
        bar.set_postfix(loss=float(loss))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
