# truth: exact
# class: random
# head: regression_6_rows


net = nn.SequentialCell(nn.Dense(6, 16), nn.ReLU(), ck.nn.Dropout(p=0.2, seed=4), nn.Dense(16, 1))
net.set_train()
loss_fn = nn.MSELoss()
opt = nn.Momentum(net.trainable_params(), 0.03, 0.9)
grad_fn = ms.value_and_grad(lambda x, y, w: (w * (net(x) - y) ** 2).mean(), None, opt.parameters)

batches = ck.data.resumable(loader, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    for x, y in batches:
        spread = (net(x) - net(x)).abs()
        loss, grads = grad_fn(x, y, ops.stop_gradient(1 / (1 + spread)))
        opt(grads)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
