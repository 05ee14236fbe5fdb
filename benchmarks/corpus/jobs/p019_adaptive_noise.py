# truth: differs
# class: variable
# head: pynative_dataset_ops
# Gradient noise whose strength a coroutine adapts to the losses that it is sent.

ms.set_seed(119)


def noise_strength(start, decay=0.9):
    strength, average = start, None
    while True:
        loss = yield strength
        if average is not None and loss < average:
            strength *= decay
        average = loss if average is None else 0.8 * average + 0.2 * loss


r = np.random.RandomState(19)
labels = r.randint(0, 4, 80).astype(np.int32)
x = (r.randn(80, 8) + np.eye(4)[labels].repeat(2, 1)).astype(np.float32)
train = ds.NumpySlicesDataset((x, labels), ["x", "label"], shuffle=True).batch(8)
net = nn.SequentialCell(nn.Dense(8, 16), nn.ReLU(), nn.Dense(16, 4))
optimizer = nn.Momentum(net.trainable_params(), 0.03, 0.9)
ce = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
grad_fn = ms.value_and_grad(lambda x, y: ce(net(x), y), None, net.trainable_params())

controller = noise_strength(0.3)
strength = next(controller)
batches = ck.data.resumable(train, epochs=4)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, optimizer], batches)
    manager.restore(state)
    for xb, yb in batches:
        loss, grads = grad_fn(xb, yb)
        optimizer(tuple(g + strength * ops.randn(*g.shape) for g in grads))
        strength = controller.send(float(loss.asnumpy()))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
