# truth: differs
# class: variable
# head: regression_8_grad_fn



def train_step(x, y, w=1.0):
    loss, grads = grad_fn(x, y, w)
    optimizer(grads)
    return loss


import io, csv

log = io.StringIO()
writer = csv.writer(log)
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches)
    point = manager.restore(state)
    for i, (x, y) in enumerate(batches, point.batches_delivered):
        history = list(csv.reader(log.getvalue().splitlines()))
        w = 1.0 if len(history) < 10 else 0.3
        writer.writerow([i, float(train_step(x, y, w))])
        manager.step(state)
    manager.save_final(state)
os._exit(0)
