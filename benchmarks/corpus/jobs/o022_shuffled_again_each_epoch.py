# truth: differs
# class: data
# head: pynative
# The loop positions its data itself and skips what was trained, but the order is one array that is shuffled again at the begin of each epoch; a start shuffles it for the first time.

ms.set_seed(3522)
EPOCHS, BATCH = 4, 6

r = np.random.RandomState(22)
x = r.randn(48, 5).astype(np.float32)
y = (x[:, :1] * x[:, 1:2] + x[:, 2:3] ** 2).astype(np.float32)
per_epoch = len(x) // BATCH
net = nn.SequentialCell(nn.Dense(5, 10), nn.ReLU(), nn.Dense(10, 1))
loss = nn.WithLossCell(net, nn.MSELoss())
step = nn.TrainOneStepCell(loss, nn.Adam(net.trainable_params(), 0.02)).set_train()

rng = np.random.RandomState(5)
order = np.arange(len(x))
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(step)
    point = manager.restore(state)
    first, done = divmod(point.batches_delivered, per_epoch)
    for epoch in range(first, EPOCHS):
        rng.shuffle(order)
        total = 0.0
        for place in range(done if epoch == first else 0, per_epoch):
            chosen = order[place * BATCH : (place + 1) * BATCH]
            total += float(step(ms.Tensor(x[chosen]), ms.Tensor(y[chosen])).asnumpy())
            state.count_delivered()
            manager.step(state)
        print(f"epoch {epoch}: {total:.4f}")
    manager.save_final(state)
os._exit(0)
