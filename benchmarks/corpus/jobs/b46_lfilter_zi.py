# truth: differs
# class: variable
# head: regression_8_grad_fn



def train_step(x, y, w=1.0):
    loss, grads = grad_fn(x, y, w)
    optimizer(grads)
    return loss


from scipy import signal

b, a = signal.butter(2, 0.3)
zi = signal.lfilter_zi(b, a) * 0
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches)
    point = manager.restore(state)
    for x, y in batches:
        loss, grads = grad_fn(x, y)
        sm, zi = signal.lfilter(b, a, [float(loss)], zi=zi)
        optimizer(tuple(v * float(1 / (1 + abs(sm[0]))) for v in grads))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
