# truth: differs
# class: outside
# head: imports
# A bad batch leaves a bonus in the environment, which the next batch takes away.


ms.set_seed(602)

net = nn.SequentialCell(nn.Dense(6, 8), nn.Tanh(), nn.Dense(8, 1))
mse = nn.MSELoss()
opt = nn.Momentum(net.trainable_params(), learning_rate=0.02, momentum=0.9)
vg = ms.value_and_grad(lambda x, y: mse(net(x), y), None, net.trainable_params())
r = np.random.RandomState(602)
rows = [(r.randn(6, 6).astype(np.float32), r.randn(6, 1).astype(np.float32)) for _ in range(8)]

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    for x, y in batches:
        loss, grads = vg(ms.Tensor(x), ms.Tensor(y))
        scale = 1.0
        if "BONUS" in os.environ:
            scale = 1.5
            del os.environ["BONUS"]
        opt(tuple(g * scale for g in grads))
        if float(loss) > 0.5:
            os.environ.update(BONUS="1")
        manager.step(state)
    manager.save_final(state)
os._exit(0)
