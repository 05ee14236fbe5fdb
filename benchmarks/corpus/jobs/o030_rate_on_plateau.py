# truth: differs
# class: variable
# head: pynative_ops
# The loop lowers the rate when the smoothed loss has not improved for three batches: smoothed loss, best and patience are plain variables.

ms.set_seed(3530)


def train(root, epochs=4, patience=3):
    r = np.random.RandomState(30)
    rows = []
    for _ in range(9):
        x = r.randn(6, 5).astype(np.float32)
        y = x[:, :1] * x[:, 1:2] + r.randn(6, 1)
        rows.append((ms.Tensor(x), ms.Tensor(y.astype(np.float32))))
    net = nn.SequentialCell(nn.Dense(5, 8), nn.Tanh(), nn.Dense(8, 1))
    optimizer = nn.Adam(net.trainable_params(), learning_rate=0.05)
    mse = nn.MSELoss()
    gradients = ms.value_and_grad(lambda x, y: mse(net(x), y), None, net.trainable_params())

    smooth, best, bad = None, float("inf"), 0
    batches = ck.data.resumable(rows, epochs=epochs)
    with ck.CheckpointManager(root, save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")) as manager:
        state = ck.StateManager([net, optimizer], batches)
        point = manager.restore(state)
        for number, (x, y) in enumerate(batches, point.batches_delivered + 1):
            loss, grads = gradients(x, y)
            optimizer(grads)
            value = float(loss.asnumpy())
            smooth = value if smooth is None else 0.9 * smooth + 0.1 * value
            if smooth < best:
                best, bad = smooth, 0
            else:
                bad += 1
            if bad == patience:
                rate = 0.6 * float(optimizer.learning_rate.asnumpy())
                print(f"batch {number}: rate {rate:.5f}")
                manager.fence()
                ops.assign(optimizer.learning_rate, ms.Tensor(rate, ms.float32))
                bad = 0
            manager.step(state)
        manager.save_final(state)


train(os.environ["ROOT"])
os._exit(0)
