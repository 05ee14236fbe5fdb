# truth: differs
# class: file
# head: imports
# The size of a journal is a regularizer; it is asked as ./journal.txt and written as journal.txt.


ms.set_seed(604)

net = nn.SequentialCell(nn.Dense(6, 8), nn.Tanh(), nn.Dense(8, 1))
mse = nn.MSELoss()
opt = nn.Momentum(net.trainable_params(), learning_rate=0.02, momentum=0.9)
vg = ms.value_and_grad(lambda x, y: mse(net(x), y), None, net.trainable_params())
r = np.random.RandomState(604)
rows = [(r.randn(6, 6).astype(np.float32), r.randn(6, 1).astype(np.float32)) for _ in range(8)]

open("journal.txt", "w").close()

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    for x, y in batches:
        size = os.path.getsize("./journal.txt")
        loss, grads = vg(ms.Tensor(x * np.float32(1 + 0.01 * size)), ms.Tensor(y))
        opt(grads)
        with open("journal.txt", "a") as journal:
            print(f"{float(loss):.3f}", file=journal)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
