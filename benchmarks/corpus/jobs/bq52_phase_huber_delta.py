# truth: differs
# class: variable
# head: regression_6_pipeline



def warm_up(net):
    opt = nn.Momentum(net.trainable_params(), 0.05, 0.9)
    grad_fn = ms.value_and_grad(lambda x, y: ops.mse_loss(net(x), y), None, opt.parameters)
    worst = 0.0
    batches = ck.data.resumable(pipeline(), 1)
    for _, (x, y) in ck.CheckpointManager(f"{ROOT}/warm", **SAVE).loop(ck.StateManager([net, opt], batches)):
        loss, grads = grad_fn(x, y)
        opt(grads)
        worst = max(worst, float(loss))
    return worst


net = make_net()
worst = warm_up(net)
delta = 0.2 + worst / 10
cell = ck.AccumulationTrainCell(
    nn.WithLossCell(net, nn.HuberLoss(delta=delta)), nn.Momentum(net.trainable_params(), 0.05, 0.9), 2
)
cell.set_train()
batches = ck.data.resumable(pipeline(seed=2), 3)
for _, (x, y) in ck.CheckpointManager(f"{ROOT}/main", **SAVE).loop(ck.StateManager(cell, batches)):
    cell(x, y)
os._exit(0)
