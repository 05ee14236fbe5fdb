# truth: refused
# class: attribute
# head: regression_8_grad_fn



def train_step(x, y, w=1.0):
    loss, grads = grad_fn(x, y, w)
    optimizer(grads)
    return loss


import pydantic


class Sched(pydantic.BaseModel):
    lr: float = 0.01
    decay: float = 0.9


class Config(pydantic.BaseModel):
    sched: Sched = Sched()
    clip: float = 1.0


cfg = Config()
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches)
    point = manager.restore(state)
    for x, y in batches:
        cfg.sched.lr *= cfg.sched.decay
        ops.assign(optimizer.learning_rate, Tensor(cfg.sched.lr, ms.float32))
        train_step(x, y)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
