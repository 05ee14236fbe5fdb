# truth: differs
# class: variable
# head: regression_6_pipeline



def warm_up(net):
    opt = nn.Momentum(net.trainable_params(), 0.05, 0.9)
    grad_fn = ms.value_and_grad(lambda x, y: ops.mse_loss(net(x), y), None, opt.parameters)
    worst = 0.0
    for x, y in ck.loop(f"{ROOT}/warm", pipeline(), epochs=1, train=[net, opt], **SAVE):
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
for x, y in ck.loop(f"{ROOT}/main", pipeline(seed=2), epochs=3, train=cell, **SAVE):
    cell(x, y)
os._exit(0)
