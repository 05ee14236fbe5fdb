# truth: refused
# class: attribute
# head: regression_8_train_step



class Hyper:
    lr, wd = 0.01, 0.001

    def decay(self, **kw):
        for k, f in kw.items():
            setattr(self, k, getattr(self, k) * f)


h = Hyper()
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches)
    point = manager.restore(state)
    for x, y in batches:
        ops.assign(optimizer.learning_rate, Tensor(h.lr, ms.float32))
        loss, grads = grad_fn(x, y)
        optimizer(tuple(v + h.wd * p for v, p in zip(grads, optimizer.parameters)))
        h.decay(lr=0.95, wd=1.1)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
