# truth: exact
# class: random
# head: root_dataset_tensor_ops



def make_net():
    ms.set_seed(42)
    return nn.SequentialCell(nn.Dense(6, 12), nn.ReLU(), nn.Dense(12, 1))


def make_data():
    rng = np.random.default_rng(8)
    x = rng.normal(size=(96, 6)).astype(np.float32)
    y = np.abs(x[:, :1] - x[:, 1:2]).astype(np.float32)
    return x, y


def find_lr(x, y, low=1e-3, high=1.0, steps=15):
    """Raises the rate exponentially on a throw-away network; returns a tenth of the one with the least loss."""
    net = make_net()
    params = net.trainable_params()
    grad_fn = ms.value_and_grad(lambda a, b: ops.mse_loss(net(a), b), None, params)
    smooth, best, best_lr = None, float("inf"), low
    for i in range(steps):
        lr = low * (high / low) ** (i / (steps - 1))
        at = (i * 8) % 88
        loss, grads = grad_fn(Tensor(x[at : at + 8]), Tensor(y[at : at + 8]))
        smooth = float(loss) if smooth is None else 0.8 * smooth + 0.2 * float(loss)
        if smooth < best:
            best, best_lr = smooth, lr
        if smooth > 4 * best:
            break
        for p, g in zip(params, grads):
            p.set_data(p - lr * g)
    return best_lr / 10


def main():
    x, y = make_data()
    lr = find_lr(x, y)
    print("learning rate", lr)
    net = make_net()
    optimizer = nn.Momentum(net.trainable_params(), lr, 0.9)
    cell = nn.TrainOneStepCell(nn.WithLossCell(net, nn.MSELoss()), optimizer).set_train()
    dataset = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=True).batch(8)
    run = ck.loop(
        ROOT, dataset, epochs=3, train=cell, save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
    )
    for a, b in run:
        number = run.step
        loss = cell(a, b)
        if number % 12 == 0:
            print(number, float(loss))


main()
