# truth: differs
# class: outside
# head: imports
# The first update is a small one; a variable of the environment says that it was made.


ms.set_seed(601)

net = nn.SequentialCell(nn.Dense(6, 8), nn.Tanh(), nn.Dense(8, 1))
mse = nn.MSELoss()
opt = nn.Momentum(net.trainable_params(), learning_rate=0.02, momentum=0.9)
vg = ms.value_and_grad(lambda x, y: mse(net(x), y), None, net.trainable_params())
r = np.random.RandomState(601)
rows = [(r.randn(6, 6).astype(np.float32), r.randn(6, 1).astype(np.float32)) for _ in range(8)]

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    for x, y in batches:
        loss, grads = vg(ms.Tensor(x), ms.Tensor(y))
        scale = 1.0 if "TRAINING_IS_WARM" in os.environ else 0.1
        opt(tuple(g * scale for g in grads))
        os.environ["TRAINING_IS_WARM"] = "yes"
        manager.step(state)
    manager.save_final(state)
os._exit(0)
