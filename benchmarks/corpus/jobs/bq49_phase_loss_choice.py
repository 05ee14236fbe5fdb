# truth: differs
# class: attribute
# head: regression_6_pipeline



def run(root, net, criterion, epochs, data):
    opt = nn.Momentum(net.trainable_params(), 0.02, 0.9)
    grad_fn = ms.value_and_grad(lambda x, y: criterion(net(x), y), None, opt.parameters)
    last = float("inf")
    for x, y in ck.loop(root, data, epochs=epochs, train=[net, opt], **SAVE):
        loss, grads = grad_fn(x, y)
        opt(grads)
        last = float(ops.mse_loss(net(x), y))
    return last


candidates = {"mse": nn.MSELoss(), "l1": nn.L1Loss(), "huber": nn.HuberLoss()}
scores = {}
for name, criterion in candidates.items():
    ms.set_seed(5)
    scores[name] = run(f"{ROOT}/search-{name}", make_net(), criterion, 1, pipeline())
best = min(scores, key=scores.get)
print(scores, best)
ms.set_seed(6)
run(f"{ROOT}/final", make_net(), candidates[best], 3, pipeline())
os._exit(0)
