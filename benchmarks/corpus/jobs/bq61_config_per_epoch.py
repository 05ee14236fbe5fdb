# truth: differs
# class: variable
# head: regression_6_pipeline



net = make_net()
opt = nn.Adam(net.trainable_params(), 0.01)
config = {"weight": 1.0, "sigma": 0.0}
grad_fn = ms.value_and_grad(lambda x, y, w: w * ops.mse_loss(net(x), y), None, opt.parameters)


def on_epoch_start(epoch):
    config["sigma"] = 0.1 * epoch
    config["weight"] = 1 / (1 + epoch)


data = pipeline()
per_epoch = data.get_dataset_size()
batches = ck.data.resumable(data, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, opt], batches)
    point = manager.restore(state)
    for number, (x, y) in enumerate(batches, point.batches_delivered):
        epoch, within = divmod(number, per_epoch)
        if within == 0:
            on_epoch_start(epoch)
        x = x + Tensor(np.random.normal(0, config["sigma"], x.shape), ms.float32)
        loss, grads = grad_fn(x, y, config["weight"])
        opt(grads)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
