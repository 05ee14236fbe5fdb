# truth: differs
# class: variable
# head: regression_6_rows

net = nn.SequentialCell(nn.Dense(6, 12), nn.Tanh(), nn.Dense(12, 1))

loss_fn = nn.MSELoss()
opt = nn.Adam(net.trainable_params(), 0.01)


def forward(x, y, lam, mu):
    violation = (net(x).mean() - 0.2) ** 2
    return loss_fn(net(x), y) + lam * violation + 0.5 * mu * violation**2, violation


grad_fn = ms.value_and_grad(forward, None, opt.parameters, has_aux=True)


def main():
    lam, mu = 0.0, 1.0
    batches = ck.data.resumable(loader, epochs=3)
    with ck.CheckpointManager(ROOT, **SAVE) as manager:
        state = ck.StateManager([net, opt], batches)
        manager.restore(state)
        for x, y in batches:
            (loss, violation), grads = grad_fn(x, y, lam, mu)
            opt(grads)
            lam = max(0.0, lam + mu * float(violation))
            mu = min(mu * 1.1, 20.0)
            manager.step(state)
        manager.save_final(state)


if __name__ == "__main__":
    main()
os._exit(0)
