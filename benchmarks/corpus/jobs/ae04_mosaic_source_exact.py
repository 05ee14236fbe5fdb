# truth: exact
# class: data
# head: saving_collections_dataset_parameter

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(3)
rng0 = np.random.default_rng(31)
X = rng0.normal(size=(80, 6)).astype(np.float32)
Y = X[:, :1] - X[:, 1:2]


class Blend:
    def __len__(self):
        return 80

    def __iter__(self):
        previous = collections.deque([X[-1]], maxlen=2)
        for x, y in zip(X, Y):
            yield (0.8 * x + 0.2 * np.mean(previous, axis=0)).astype(np.float32), y
            previous.append(x)


net = nn.SequentialCell(nn.Dense(6, 12), nn.Tanh(), nn.Dense(12, 1))
loss_fn = nn.MSELoss()
opt = nn.Momentum(net.trainable_params(), 0.03, 0.9)
grad_fn = ms.value_and_grad(lambda x, y: loss_fn(net(x), y), None, opt.parameters)

data = ds.GeneratorDataset(Blend(), ["x", "y"], shuffle=False).batch(8)
batches = ck.data.resumable(data, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    for x, y in batches:
        loss, grads = grad_fn(x, y)
        opt(grads)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
