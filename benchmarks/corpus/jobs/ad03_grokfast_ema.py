# truth: differs
# class: variable
# head: regression_6_grad_fn



def gradfilter_ema(named, grads, alpha=0.9, lamb=1.0):
    """As in the Grokfast repository: pass grads=None at first."""
    if grads is None:
        grads = {n: g for n, g in named}
    for n, g in named:
        grads[n] = grads[n] * alpha + g * (1 - alpha)
    return grads, tuple(g + lamb * grads[n] for n, g in named)


names = [p.name for p in opt.parameters]
slow = None
batches = ck.data.resumable(loader, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    for x, y in batches:
        loss, grads = grad_fn(x, y)
        slow, filtered = gradfilter_ema(list(zip(names, grads)), slow)
        opt(filtered)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
