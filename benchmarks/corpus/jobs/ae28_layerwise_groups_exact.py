# truth: exact
# class: variable
# head: regression_6_rows

net = nn.SequentialCell(nn.Dense(6, 12), nn.Tanh(), nn.Dense(12, 1))

from mindspore.experimental import optim

groups = [
    {"params": net[0].trainable_params(), "lr": 0.003, "weight_decay": 0.01},
    {"params": net[2].trainable_params(), "lr": 0.01},
]
opt = optim.AdamW(groups, lr=0.01)
loss_fn = nn.SmoothL1Loss()
params = net.trainable_params()
grad_fn = ms.value_and_grad(lambda x, y: loss_fn(net(x), y), None, params)
batches = ck.data.resumable(loader, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    for x, y in batches:
        loss, grads = grad_fn(x, y)
        opt(ops.clip_by_global_norm(grads, 1.0))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
