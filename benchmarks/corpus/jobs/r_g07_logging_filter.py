# truth: differs
# class: attribute
# head: regression_8_momentum



grad_fn = ms.value_and_grad(forward_fn, None, optimizer.parameters)
import logging


class Dedup(logging.Filter):
    def __init__(self):
        super().__init__()
        self.n = 0

    def filter(self, record):
        self.n += 1
        return self.n % 4 == 0


log = logging.getLogger("train7")
log.setLevel("INFO")
log.propagate = False


class Drop(logging.Handler):
    def emit(self, record):
        ops.assign(optimizer.learning_rate, optimizer.learning_rate * 0.8)


f = Dedup()
log.addFilter(f)
log.addHandler(Drop())
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches)
    point = manager.restore(state)
    for x, y in batches:
        loss, grads = grad_fn(x, y)
        optimizer(grads)
        log.info("loss %f", float(loss.asnumpy()))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
