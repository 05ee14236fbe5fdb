# truth: differs
# class: variable
# head: pynative_ops
# The loop is iter(step, None); a Kalman filter in the closure of step estimates level and slope of the loss and gives the momentum-free rate.

ms.set_seed(4157)


def kalman(process=0.01, noise=0.1):
    """a filter as a pair of functions: observe(value) and estimate()"""
    x, p = np.array([1.0, 0.0]), np.eye(2)
    f, h = np.array([[1.0, 1.0], [0.0, 1.0]]), np.array([1.0, 0.0])

    def observe(value):
        nonlocal x, p
        x, p = f @ x, f @ p @ f.T + process * np.eye(2)
        gain = p @ h / (h @ p @ h + noise)
        x, p = x + gain * (value - h @ x), p - np.outer(gain, h @ p)

    return observe, lambda: tuple(x)


def stepper(net, opt, batches, manager):
    mse = nn.MSELoss()
    gradients = ms.value_and_grad(lambda x, y: mse(net(x), y), None, net.trainable_params())
    stream = iter(batches)
    observe, estimate = kalman()

    def step():
        batch = next(stream, None)
        if batch is None:
            return None
        loss, grads = gradients(*batch)
        observe(float(loss.asnumpy()))
        level, slope = estimate()
        manager.fence()
        rate = min(0.1, max(0.001, 0.03 * level - 0.1 * slope))
        ops.assign(opt.learning_rate, ms.Tensor(rate, ms.float32))
        opt(grads)
        return loss

    return step


r = np.random.RandomState(57)
rows = []
for _ in range(8):
    x = r.randn(8, 5).astype(np.float32)
    rows.append((ms.Tensor(x), ms.Tensor((x[:, :1] * x[:, 1:2] + x[:, 2:3]).astype(np.float32))))
net = nn.SequentialCell(nn.Dense(5, 8), nn.Tanh(), nn.Dense(8, 1))
opt = nn.SGD(net.trainable_params(), 0.03)

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    for loss in iter(stepper(net, opt, batches, manager), None):
        manager.step(state)
    manager.save_final(state)
os._exit(0)
