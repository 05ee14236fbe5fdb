# truth: differs
# class: random
# head: saving_pynative_dataset_parameter

rng0 = np.random.default_rng(31)
X = rng0.normal(size=(80, 6)).astype(np.float32)
Y = (np.abs(X).argmax(1) % 4).astype(np.int32)
net = nn.SequentialCell(nn.Dense(6, 12), nn.ReLU(), nn.Dense(12, 4))


class HardSource:
    def __init__(self):
        self.difficulty = np.ones(80)

    def __len__(self):
        return 80

    def __getitem__(self, i):
        i = int(i)
        if i % 5 == 0:
            i = int(self.difficulty.argmax())
        return np.int32(i), X[i], Y[i]


source = HardSource()
data = ds.GeneratorDataset(
    source, ["i", "x", "y"], shuffle=False, num_parallel_workers=1, python_multiprocessing=False
).batch(8)
opt = nn.Adam(net.trainable_params(), 0.01)
grad_fn = ms.value_and_grad(lambda x, y: ops.cross_entropy(net(x), y), None, opt.parameters)
batches = ck.data.resumable(data, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    for i, x, y in batches:
        loss, grads = grad_fn(x, y)
        opt(grads)
        source.difficulty[i.asnumpy()] *= 0.5
        manager.step(state)
    manager.save_final(state)
os._exit(0)
