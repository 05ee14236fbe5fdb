# truth: differs
# class: attribute
# head: regression_8_grad_fn



def train_step(x, y, w=1.0):
    loss, grads = grad_fn(x, y, w)
    optimizer(grads)
    return loss


import attrs


@attrs.define
class TrainState:
    step: int = 0
    ema_loss: float = 0.0

    def update(self, loss):
        self.step += 1
        self.ema_loss = 0.9 * self.ema_loss + 0.1 * loss

    @property
    def debiased(self):
        return self.ema_loss / (1 - 0.9**self.step) if self.step else 1.0


ts = TrainState()
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches)
    point = manager.restore(state)
    for x, y in batches:
        w = 1.0 / (1.0 + ts.debiased)
        loss = train_step(x, y, w)
        ts.update(float(loss))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
