# truth: differs
# class: variable
# head: pynative_hashlib_dataset_ops
# A state machine: each stage is a function that trains a batch and returns the stage of the next one.

ms.set_seed(21)

r = np.random.RandomState(11)
x = r.randn(64, 6).astype(np.float32)
y = np.tanh(x[:, :2] @ r.randn(2, 1)).astype(np.float32)
data = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=True).batch(8)
net = nn.SequentialCell(nn.Dense(6, 12), nn.ReLU(), nn.Dense(12, 1))
opt = nn.Adam(net.trainable_params(), 0.01)
mse, l1 = nn.MSELoss(), nn.L1Loss()
mse_grad = ms.value_and_grad(lambda a, b: mse(net(a), b), None, opt.parameters)
l1_grad = ms.value_and_grad(lambda a, b: l1(net(a), b), None, opt.parameters)


def warmup(a, b):
    loss, grads = mse_grad(a, b)
    opt(tuple(0.1 * g for g in grads))
    return coarse if float(loss) < 0.9 else warmup


def coarse(a, b):
    loss, grads = mse_grad(a, b)
    opt(grads)
    return fine if float(loss) < 0.45 else coarse


def fine(a, b):
    loss, grads = l1_grad(a, b)
    opt(grads)
    return fine


batches = ck.data.resumable(data, epochs=5)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    stage = warmup
    for a, b in batches:
        stage = stage(a, b)
        manager.step(state)
    manager.save_final(state)
    print("ended in", stage.__name__)
print(hashlib.sha256(b"".join(p.asnumpy().tobytes() for p in net.get_parameters())).hexdigest(), flush=True)
os._exit(0)
