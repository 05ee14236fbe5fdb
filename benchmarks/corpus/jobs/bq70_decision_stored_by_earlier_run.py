# truth: exact
# class: attribute
# head: regression_6_pipeline



class Warmth:
    worst = 0.0


optimizers = []  # of all phases


def run(root, net, epochs, data, clip, **kept):
    opt = nn.Momentum(net.trainable_params(), 0.05, 0.9)
    optimizers.append(opt)
    grad_fn = ms.value_and_grad(lambda x, y: ops.mse_loss(net(x), y), None, opt.parameters)
    for x, y in ck.loop(root, data, epochs=epochs, train=[net, opt], stateful=kept, **SAVE):
        loss, grads = grad_fn(x, y)
        if clip == "norm":
            grads = ops.clip_by_global_norm(grads, 0.3)
        elif clip == "value":
            grads = tuple(ops.clamp(g, -0.05, 0.05) for g in grads)
        opt(grads)
        warmth.worst = max(warmth.worst, float(loss))


net, warmth = make_net(), Warmth()
warmth.worst = 0.0  # an attribute of its own
run(f"{ROOT}/warm", net, 1, pipeline(), "none", warmth=ck.attributes(warmth, "worst"))
clip = "norm" if warmth.worst > 0.5 else "value"  # a rough start needs gentler steps
run(f"{ROOT}/main", net, 3, pipeline(seed=2), clip)
os._exit(0)
