# truth: exact, may be named
# class: other
# head: imports_ops
# Stochastic weight averaging: from the sixth batch on every second state of the weights goes into a list, and at the end the network gets their mean. GRAPH mode.


ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(3527)

r = np.random.RandomState(27)
x = r.randn(48, 6).astype(np.float32)
y = (x[:, :2] * x[:, 2:4] - x[:, 4:]).astype(np.float32)
rows = [(ms.Tensor(a), ms.Tensor(b)) for a, b in zip(np.split(x, 8), np.split(y, 8))]
net = nn.SequentialCell(nn.Dense(6, 12), nn.ReLU(), nn.Dense(12, 2))
loss = nn.WithLossCell(net, nn.MSELoss())
step = nn.TrainOneStepCell(loss, nn.SGD(net.trainable_params(), 0.08)).set_train()
snapshots = []

batches = ck.data.resumable(rows, epochs=4)
manager = ck.CheckpointManager(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
state = ck.StateManager(step, batches)
point = manager.restore(state)
for number, (a, b) in enumerate(batches, point.batches_delivered + 1):
    step(a, b)
    if number >= 6 and number % 2 == 0:
        snapshots.append([p.asnumpy().copy() for p in net.trainable_params()])
    manager.step(state)
if snapshots:
    manager.fence()
    for p, values in zip(net.trainable_params(), zip(*snapshots)):
        ops.assign(p, ms.Tensor(np.mean(values, 0)))
    print("mean of", len(snapshots))
manager.save_final(state)
manager.close()
os._exit(0)
