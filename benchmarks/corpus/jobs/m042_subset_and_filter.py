# truth: exact
# class: data
# head: imports_dataset
# MindSpore's SubsetRandomSampler takes the rows of a fold, and a filter with a predicate of the row alone leaves out eight of them; seeded, PYNATIVE.


ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(4342)
ds.config.set_seed(4342)


def plausible(y):
    return bool(np.abs(y).max() < 5)


r = np.random.RandomState(42)
x = r.randn(50, 5).astype(np.float32)
y = (x[:, :1] * x[:, 1:2]).astype(np.float32).clip(-4, 4)
y[:8] = 9.0  # not measured
fold = [i for i in range(50) if i < 8 or i % 5 != 1][:40]
assert len(fold) == 40

dataset = ds.NumpySlicesDataset((x, y), ["x", "y"], sampler=ds.SubsetRandomSampler(fold), num_parallel_workers=1)
dataset = dataset.filter(plausible, input_columns=["y"], num_parallel_workers=1)
count = sum(1 for i in fold if plausible(y[i]))
dataset = dataset.batch(4, drop_remainder=True)
net = nn.SequentialCell(nn.Dense(5, 8), nn.Tanh(), nn.Dense(8, 1))
mse = nn.MSELoss()
opt = nn.Momentum(net.trainable_params(), 0.05, 0.9)
gradients = ms.value_and_grad(lambda x, y: mse(net(x), y), None, net.trainable_params())

batches = ck.data.resumable(dataset, epochs=4)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    print(f"{count} of {len(fold)} rows are plausible")
    for a, b in batches:
        loss, grads = gradients(a, b)
        opt(grads)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
