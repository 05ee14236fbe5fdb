# truth: differs
# class: attribute
# head: regression_6_grad_fn



class LotteryTicket:
    def __init__(self, params, rewind_at, prune_at):
        self.params, self.rewind_at, self.prune_at = params, rewind_at, prune_at
        self.early = {}

    def after_step(self, step):
        if step == self.rewind_at:
            self.early = {p.name: p.asnumpy().copy() for p in self.params}
        if step == self.prune_at:
            for p in self.params:
                mask = np.abs(p.asnumpy()) > np.quantile(np.abs(p.asnumpy()), 0.3)
                ops.assign(p, Tensor(np.where(mask, self.early.get(p.name, p.asnumpy()), 0).astype(np.float32)))


ticket = LotteryTicket(net.trainable_params(), 8, 20)
batches = ck.data.resumable(loader, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, opt], batches)
    point = manager.restore(state)
    for step, (x, y) in enumerate(batches, point.batches_delivered):
        loss, grads = grad_fn(x, y)
        opt(grads)
        ticket.after_step(step)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
