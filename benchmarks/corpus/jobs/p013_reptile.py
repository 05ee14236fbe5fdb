# truth: exact
# class: random
# head: pynative_ops
# Reptile on sine waves: each outer step adapts to a task with plain SGD and moves a little towards the result.

ms.set_seed(113)
np.random.seed(113)

net = nn.SequentialCell(nn.Dense(1, 20), nn.Tanh(), nn.Dense(20, 20), nn.Tanh(), nn.Dense(20, 1))
params = net.trainable_params()
grad_fn = ms.value_and_grad(lambda x, y: ((net(x) - y) ** 2).mean(), None, params)
inner_rate, outer_rate, inner_steps = 0.05, 0.3, 3


def sample_task(low, high):
    amplitude, phase = np.random.uniform(low, high), np.random.uniform(0, np.pi)
    return lambda x: (amplitude * np.sin(x + phase)).astype(np.float32)


amplitudes = [(0.5 + 0.2 * i, 1.0 + 0.3 * i) for i in range(9)]
batches = ck.data.resumable(amplitudes, epochs=4)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net], batches)
    manager.restore(state)
    for low, high in batches:
        task = sample_task(float(low), float(high))
        manager.fence()
        before = [p.asnumpy().copy() for p in params]
        for _ in range(inner_steps):
            x = np.random.uniform(-4, 4, (10, 1)).astype(np.float32)
            loss, grads = grad_fn(ms.Tensor(x), ms.Tensor(task(x)))
            for p, g in zip(params, grads):
                ops.assign_sub(p, inner_rate * g)
        for p, old in zip(params, before):
            ops.assign(p, ms.Tensor(old + outer_rate * (p.asnumpy() - old)))
        manager.step(state, {"loss": loss})
    manager.save_final(state)
os._exit(0)
