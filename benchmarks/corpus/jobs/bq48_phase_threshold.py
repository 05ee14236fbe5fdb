# truth: differs
# class: variable
# head: regression_6_pipeline



def fit(root, net, epochs, data, filter=None, every=5, noise=0.0):
    opt = nn.Momentum(net.trainable_params(), 0.05, 0.9)
    grad_fn = ms.value_and_grad(lambda x, y: ops.mse_loss(net(x), y), None, opt.parameters)
    losses = []
    for x, y in ck.loop(
        root,
        data,
        epochs=epochs,
        train=[net, opt],
        save=ck.SaveEvery(micro_steps=every),
        saving=ck.Saving(when_busy="wait"),
    ):
        if noise:
            x = x + Tensor(np.random.normal(0, noise, x.shape), ms.float32)
        loss, grads = grad_fn(x, y)
        if filter is not None and float(loss) > filter:
            continue
        opt(grads)
        losses.append(float(loss))
    return losses


net = make_net()
losses = fit(f"{ROOT}/warm", net, 1, pipeline())
threshold = float(np.quantile(losses, 0.6)) if losses else float("inf")  # leave out the outliers from here on
fit(f"{ROOT}/main", net, 3, pipeline(seed=2), filter=threshold)
os._exit(0)
