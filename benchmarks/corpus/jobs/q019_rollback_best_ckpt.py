# truth: differs
# class: variable
# head: pynative_hashlib_dataset_ops
# The best weights are saved with ms.save_checkpoint and loaded again when the loss explodes.

ms.set_seed(29)
r = np.random.RandomState(19)
x = r.randn(64, 4).astype(np.float32)
y = (2 * np.sin(2 * x[:, :1])).astype(np.float32)
data = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=True).batch(8)
net = nn.SequentialCell(nn.Dense(4, 16), nn.ReLU(), nn.Dense(16, 1))
opt = nn.Momentum(net.trainable_params(), 0.1, 0.9)
mse = nn.MSELoss()
grad_fn = ms.value_and_grad(lambda a, b: mse(net(a), b), None, opt.parameters)

best = 1e9
batches = ck.data.resumable(data, epochs=5)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    for a, b in batches:
        loss, grads = grad_fn(a, b)
        value = float(loss)
        if value < best:
            best = value
            ms.save_checkpoint(net, "best.ckpt")
        elif value > 1.4 * best and os.path.exists("best.ckpt"):
            for name, kept in ms.load_checkpoint("best.ckpt").items():
                ops.assign(net.parameters_dict()[name], kept)
        opt(grads)
        manager.step(state)
    manager.save_final(state)
print(hashlib.sha256(b"".join(p.asnumpy().tobytes() for p in net.get_parameters())).hexdigest(), flush=True)
os._exit(0)
