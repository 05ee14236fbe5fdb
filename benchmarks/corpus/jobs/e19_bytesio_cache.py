# truth: differs
# class: variable
# head: regression_8_grad_fn



def train_step(x, y, w=1.0):
    loss, grads = grad_fn(x, y, w)
    optimizer(grads)
    return loss


import io

mem = io.StringIO()
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches)
    point = manager.restore(state)
    for x, y in batches:
        lines = mem.getvalue().splitlines()
        w = 1.0 if len(lines) < 10 else 0.3
        mem.write("%.4f\n" % float(train_step(x, y, w)))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
