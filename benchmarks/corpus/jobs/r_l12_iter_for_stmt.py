# truth: differs
# class: attribute
# head: regression_8_momentum



grad_fn = ms.value_and_grad(forward_fn, None, optimizer.parameters)


class Curriculum:
    def __init__(self):
        self.level = 1

    def __iter__(self):
        self.level = min(20, self.level + 1)
        yield from range(self.level)


cur = Curriculum()
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches)
    point = manager.restore(state)
    for x, y in batches:
        w = 0
        for k in cur:
            w += k / 200
        loss, grads = grad_fn(x, y)
        optimizer(tuple(q * w for q in grads))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
