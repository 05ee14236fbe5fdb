# truth: exact
# class: data
# head: imports_random
# A legacy RandomState draws noise and a random.Random shuffles columns in groups; both generators are given by name.


ms.set_seed(94)
noise = np.random.RandomState(1234)
dice = random.Random("columns")


def augment(x):
    x = x + noise.laplace(0, 0.1, x.shape)
    groups = [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    if dice.random() < 0.5:
        dice.shuffle(groups)
    return x[:, sum(groups, [])].astype(np.float32)


data = np.random.default_rng(76)
X = data.normal(size=(72, 9)).astype(np.float32)
Y = np.abs(X).max(1, keepdims=True)
rows = [(X[i : i + 8], Y[i : i + 8]) for i in range(0, 72, 8)]

net = nn.SequentialCell(nn.Dense(9, 9), nn.ReLU(), nn.Dense(9, 1))
cell = ck.AccumulationTrainCell(nn.WithLossCell(net, nn.L1Loss()), nn.Adam(net.trainable_params(), 0.01), 2).set_train()
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches, noise=noise, dice=dice)
    manager.restore(state)
    for x, y in batches:
        cell(ms.Tensor(augment(x)), ms.Tensor(y))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
