# truth: differs
# class: global
# head: classes_6_adam

targets = np.zeros((80, 4), np.float32)


def forward(x, y, t):
    logits = net(x)
    p = ops.softmax(logits, -1)
    reg = ops.log(1 - (p * t).sum(-1).clip(0, 0.99)).mean()
    return ops.cross_entropy(logits, y) + 0.5 * reg, ops.stop_gradient(p)


grad_fn = ms.value_and_grad(forward, None, opt.parameters, has_aux=True)
batches = ck.data.resumable(loader, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    for index, x, y in batches:
        (loss, p), grads = grad_fn(x, y, Tensor(targets[index]))
        opt(grads)
        targets[index] = 0.7 * targets[index] + 0.3 * p.asnumpy()
        manager.step(state)
    manager.save_final(state)
os._exit(0)
