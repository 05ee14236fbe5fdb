# truth: exact
# class: other
# head: regression_6_pipeline



net = make_net()
decay = [p for p in net.trainable_params() if "weight" in p.name]
rest = [p for p in net.trainable_params() if "weight" not in p.name]
opt = nn.AdamWeightDecay([{"params": decay, "weight_decay": 0.01}, {"params": rest}], 0.01)
grad_fn = ms.value_and_grad(lambda x, y: ops.mse_loss(net(x), y), None, opt.parameters)
for x, y in ck.loop(ROOT, pipeline(), epochs=3, train=[net, opt], **SAVE):
    loss, grads = grad_fn(x, y)
    opt(grads)
os._exit(0)
