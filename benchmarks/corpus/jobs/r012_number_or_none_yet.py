# truth: differs
# class: file
# head: imports
# A number in a file, or 0 where there is no file yet.


ms.set_seed(612)

net = nn.SequentialCell(nn.Dense(6, 8), nn.Tanh(), nn.Dense(8, 1))
mse = nn.MSELoss()
opt = nn.Momentum(net.trainable_params(), learning_rate=0.02, momentum=0.9)
vg = ms.value_and_grad(lambda x, y: mse(net(x), y), None, net.trainable_params())
r = np.random.RandomState(612)
rows = [(r.randn(6, 6).astype(np.float32), r.randn(6, 1).astype(np.float32)) for _ in range(8)]

COUNT = os.environ["ROOT"] + ".count"
os.makedirs(os.path.dirname(COUNT), exist_ok=True)

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    for x, y in batches:
        try:
            with open(COUNT) as file:
                count = int(file.read())
        except FileNotFoundError:
            count = 0
        loss, grads = vg(ms.Tensor(x / np.float32(1 + 0.1 * count)), ms.Tensor(y))
        opt(grads)
        with open(COUNT, "w") as file:
            file.write(str(count + 1))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
