# truth: differs
# class: variable
# head: imports
# Each batch draws its feature mask from the next jumped() stream of a PCG64; the loop variable that holds the stream begins anew.


ms.set_seed(6)

src = np.random.default_rng(77)
X = src.normal(size=(8, 8, 12)).astype(np.float32)
W = src.normal(size=(12, 2)).astype(np.float32)
Y = (X @ W).astype(np.float32)
rows = [(x, ms.Tensor(y)) for x, y in zip(X, Y)]

net = nn.Dense(12, 2)
loss_fn = nn.L1Loss()
opt = nn.Adagrad(net.trainable_params(), learning_rate=0.1)
forward_backward = ms.value_and_grad(lambda a, b: loss_fn(net(a), b), None, opt.parameters)


def masked(x, stream):
    keep = np.random.Generator(stream).random(x.shape) > 0.2
    return ms.Tensor((x * keep / 0.8).astype(np.float32))


batches = ck.data.resumable(rows, epochs=3)
stream = np.random.PCG64(5)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    for x, y in batches:
        stream = stream.jumped()
        loss, grads = forward_backward(masked(x, stream), y)
        opt(grads)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
