# truth: exact
# class: variable
# head: regression_6_grad_fn


folds = np.array_split(np.random.default_rng(1).permutation(10), 3)
scores = [[] for _ in folds]
batches = ck.data.resumable(loader, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, opt], batches)
    point = manager.restore(state)
    for n, (x, y) in enumerate(batches, point.batches_delivered):
        epoch, position = divmod(n, len(loader))
        if position in folds[epoch]:
            scores[epoch].append(float(loss_fn(net(x), y)))
        else:
            loss, grads = grad_fn(x, y)
            opt(grads)
        manager.step(state)
    manager.save_final(state)
for k, s in enumerate(scores):
    if s:
        print("fold", k, np.mean(s))
os._exit(0)
