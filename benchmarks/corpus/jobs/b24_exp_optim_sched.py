# truth: differs
# class: variable
# head: regression_8_arrays

rows = [(Tensor(X[i * 8 : i * 8 + 8]), Tensor(Y[i * 8 : i * 8 + 8])) for i in range(8)]
loss_fn = nn.MSELoss()
from mindspore.experimental import optim

net = nn.Dense(8, 1)
optimizer = optim.Adam(net.trainable_params(), lr=0.02)
sched = optim.lr_scheduler.StepLR(optimizer, step_size=7, gamma=0.5)
gf = ms.value_and_grad(lambda x, y: loss_fn(net(x), y), None, net.trainable_params())
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches)
    point = manager.restore(state)
    for x, y in batches:
        l, gr = gf(x, y)
        optimizer(gr)
        sched.step()
        manager.step(state)
    manager.save_final(state)
os._exit(0)
