# truth: differs
# class: variable
# head: regression_6_pipeline



def run(root, net, epochs, data, clip):
    opt = nn.Momentum(net.trainable_params(), 0.05, 0.9)
    grad_fn = ms.value_and_grad(lambda x, y: ops.mse_loss(net(x), y), None, opt.parameters)
    largest = 0.0
    for x, y in ck.loop(root, data, epochs=epochs, train=[net, opt], **SAVE):
        loss, grads = grad_fn(x, y)
        if clip == "norm":
            grads = ops.clip_by_global_norm(grads, 0.3)
        elif clip == "value":
            grads = tuple(ops.clamp(g, -0.05, 0.05) for g in grads)
        opt(grads)
        largest = max(largest, float(loss))
    return largest


net = make_net()
worst = run(f"{ROOT}/warm", net, 1, pipeline(), clip="none")
clip = "norm" if worst > 0.5 else "value"  # a rough start needs gentler steps
run(f"{ROOT}/main", net, 3, pipeline(seed=2), clip)
os._exit(0)
