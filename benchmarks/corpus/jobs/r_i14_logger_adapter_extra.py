# truth: differs
# class: variable
# head: regression_8_momentum



grad_fn = ms.value_and_grad(forward_fn, None, optimizer.parameters)
import logging

log = logging.LoggerAdapter(logging.getLogger("t14"), {"step": 0})
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches)
    point = manager.restore(state)
    for x, y in batches:
        log.extra["step"] += 1
        loss, grads = grad_fn(x, y)
        optimizer(tuple(q / log.extra["step"] for q in grads))
        log.info("loss")
        manager.step(state)
    manager.save_final(state)
os._exit(0)
