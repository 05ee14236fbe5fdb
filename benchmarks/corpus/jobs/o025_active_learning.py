# truth: differs
# class: random
# head: imports
# Active learning: after every fourth batch the three points next to the decision boundary get their labels; which are labelled is a list of the loop. GRAPH mode.


ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(3525)

r = np.random.RandomState(25)
points = r.randn(80, 3).astype(np.float32)
answers = np.sign(points[:, :1] * points[:, 1:2] + points[:, 2:]).astype(np.float32)
net = nn.SequentialCell(nn.Dense(3, 12), nn.Tanh(), nn.Dense(12, 1))
loss = nn.WithLossCell(net, nn.MSELoss())
cell = ck.AccumulationTrainCell(loss, nn.Adam(net.trainable_params(), 0.02), accumulation_steps=1).set_train()


def ask(labelled, how_many):
    pool = [i for i in range(len(points)) if i not in labelled]
    doubt = np.abs(net(ms.Tensor(points[pool])).asnumpy()[:, 0])
    return [pool[i] for i in np.argsort(doubt, kind="stable")[:how_many]]


rng = np.random.default_rng(3525)
labelled = list(range(8))
batches = ck.data.resumable(list(range(10)), epochs=4)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches, rng=rng)
    point = manager.restore(state)
    for number, _ in enumerate(batches, point.batches_delivered):
        chosen = rng.choice(labelled, 6)
        cell(ms.Tensor(points[chosen]), ms.Tensor(answers[chosen]))
        if number % 4 == 3:
            labelled += ask(labelled, 3)
        manager.step(state)
    manager.save_final(state)
print("labelled", len(labelled))
os._exit(0)
