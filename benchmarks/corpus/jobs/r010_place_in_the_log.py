# truth: differs
# class: random
# head: imports
# The place in the log that the loop appends to is a seed of the noise.


ms.set_seed(610)

net = nn.SequentialCell(nn.Dense(6, 8), nn.Tanh(), nn.Dense(8, 1))
mse = nn.MSELoss()
opt = nn.Momentum(net.trainable_params(), learning_rate=0.02, momentum=0.9)
vg = ms.value_and_grad(lambda x, y: mse(net(x), y), None, net.trainable_params())
r = np.random.RandomState(610)
rows = [(r.randn(6, 6).astype(np.float32), r.randn(6, 1).astype(np.float32)) for _ in range(8)]

log = open("log.txt", "a")

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    for x, y in batches:
        noise = np.random.RandomState(log.tell()).randn(*x.shape)
        loss, grads = vg(ms.Tensor(x + 0.1 * noise.astype(np.float32)), ms.Tensor(y))
        opt(grads)
        print("a batch", file=log)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
