# truth: differs
# class: variable
# head: imports_dataset
# Min-max scaling: lowest and highest values are two fields of a record array that np.minimum and np.maximum update by out=.


ms.set_seed(4)
ms.set_context(mode=ms.PYNATIVE_MODE)

column = np.dtype([("low", np.float32), ("high", np.float32), ("seen", np.int64)])
table = np.zeros(6, column).view(np.recarray)
table.low[:] = np.inf
table.high[:] = -np.inf


def rescale(x):
    np.minimum(table.low, x.min(0), out=table.low)
    np.maximum(table.high, x.max(0), out=table.high)
    table.seen += len(x)
    return (x - table.low) / (table.high - table.low + 1e-6)


rng = np.random.default_rng(9)
features = (rng.normal(size=(64, 6)) * [1, 2, 3, 4, 5, 6]).astype(np.float32)
labels = (features[:, 0] > 0).astype(np.int32) + (features[:, 5] > 2).astype(np.int32)
dataset = ds.NumpySlicesDataset((features, labels), ["x", "label"], shuffle=True).batch(8)

net = nn.SequentialCell(nn.Dense(6, 8), nn.Tanh(), nn.Dense(8, 3))
loss_fn = nn.CrossEntropyLoss()
cell = ck.AccumulationTrainCell(
    nn.WithLossCell(net, loss_fn), nn.Adam(net.trainable_params(), learning_rate=0.02), accumulation_steps=2
)
cell.set_train()

batches = ck.data.resumable(dataset, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches)
    manager.restore(state)
    for x, label in batches:
        scaled = rescale(x.asnumpy()).astype(np.float32)
        cell(ms.Tensor(scaled), label)
        manager.step(state)
    print("ranges", table.low.min(), table.high.max())
    manager.save_final(state)
os._exit(0)
