# truth: exact
# class: variable
# head: imports
# The loop positions its data itself: epoch and place come from divmod of what restore() returns, each epoch's order from a seed, count_delivered() counts. GRAPH, K = 3.


ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(4432)
EPOCHS, PER_EPOCH, SIZE = 4, 8, 6


def order_of(epoch):
    return np.random.default_rng([4432, epoch]).permutation(PER_EPOCH * SIZE).reshape(PER_EPOCH, SIZE)


r = np.random.RandomState(32)
x = r.randn(PER_EPOCH * SIZE, 5).astype(np.float32)
y = (x[:, :1] * x[:, 1:2] - 0.5 * x[:, 4:]).astype(np.float32)
net = nn.SequentialCell(nn.Dense(5, 10), nn.Tanh(), nn.Dense(10, 1))
loss = nn.WithLossCell(net, nn.MSELoss())
opt = nn.Momentum(loss.trainable_params(), 0.05, 0.9)
cell = ck.AccumulationTrainCell(loss, opt, accumulation_steps=3, remainder="carry").set_train()

manager = ck.CheckpointManager(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=4), saving=ck.Saving(when_busy="wait"))
state = ck.StateManager(cell)
point = manager.restore(state)
first_epoch, done = divmod(point.batches_delivered, PER_EPOCH)
for epoch in range(first_epoch, EPOCHS):
    losses = []
    for place, rows in enumerate(order_of(epoch)):
        if epoch == first_epoch and place < done:
            continue
        losses.append(float(cell(ms.Tensor(x[rows]), ms.Tensor(y[rows])).asnumpy()))
        state.count_delivered()
        if place == PER_EPOCH - 1:
            cell.end_epoch()
        manager.step(state)
    print(f"epoch {epoch}: mean loss of {len(losses)} batches {np.mean(losses):.4f}")
manager.save_final(state)
manager.close()
os._exit(0)
