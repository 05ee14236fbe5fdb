# truth: differs
# class: variable
# head: pynative_ops
# Every third batch the loop validates; if the error is above the best by a tenth, it goes back to the best weights, which are arrays of the loop, and lowers the rate.

ms.set_seed(3526)

r = np.random.RandomState(26)


def sample(n):
    x = r.randn(n, 4).astype(np.float32)
    y = (np.sin(2 * x[:, :1]) * x[:, 1:2] + 0.5 * r.randn(n, 1)).astype(np.float32)
    return ms.Tensor(x), ms.Tensor(y)


rows = [sample(4) for _ in range(10)]
valid_x, valid_y = sample(30)
net = nn.SequentialCell(nn.Dense(4, 16), nn.Tanh(), nn.Dense(16, 1))
optimizer = nn.Momentum(net.trainable_params(), 0.25, 0.9)
mse = nn.MSELoss()
gradients = ms.value_and_grad(lambda x, y: mse(net(x), y), None, net.trainable_params())
rate, best, best_weights, returned = 0.25, float("inf"), None, []

batches = ck.data.resumable(rows, epochs=4)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, optimizer], batches)
    point = manager.restore(state)
    for number, (x, y) in enumerate(batches, point.batches_delivered):
        loss, grads = gradients(x, y)
        manager.fence()
        optimizer(grads)
        if number % 3 == 2:
            error = float(mse(net(valid_x), valid_y).asnumpy())
            if error < best:
                best = error
                best_weights = [p.asnumpy().copy() for p in net.trainable_params()]
            elif error > 1.1 * best:
                for p, value in zip(net.trainable_params(), best_weights):
                    ops.assign(p, ms.Tensor(value))
                rate *= 0.9
                ops.assign(optimizer.learning_rate, ms.Tensor(rate, ms.float32))
                returned.append((number, round(best, 4)))
        manager.step(state)
    manager.save_final(state)
print("returned", returned)
os._exit(0)
