# truth: differs
# class: data
# head: imports_dataset
# FixMatch: labelled batches, and a second, endless stream of unlabelled ones.


ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(109)


def endless(dataset):
    while True:
        for batch in dataset.create_tuple_iterator(num_epochs=1):
            yield batch


r = np.random.RandomState(9)
labels = r.randint(0, 3, 140).astype(np.int32)
x = (r.randn(140, 6) * 0.8 + np.eye(3).repeat(2, 1)[labels] * 2).astype(np.float32)
labelled = ds.NumpySlicesDataset((x[:40], labels[:40]), ["x", "label"], shuffle=True).batch(4)
unlabelled = endless(ds.NumpySlicesDataset((x[40:],), ["x"], shuffle=False).batch(10))

net = nn.SequentialCell(nn.Dense(6, 24), nn.ReLU(), nn.Dense(24, 3))
optimizer = nn.Momentum(net.trainable_params(), 0.03, 0.9)
ce = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="none")


def forward(xb, yb, strong, pseudo, mask):
    return ce(net(xb), yb).mean() + (ce(net(strong), pseudo) * mask).mean()


grad_fn = ms.value_and_grad(forward, None, net.trainable_params())
batches = ck.data.resumable(labelled, epochs=4)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, optimizer], batches)
    manager.restore(state)
    for xb, yb in batches:
        (weak,) = next(unlabelled)
        logits = net(weak).asnumpy()
        pseudo = ms.Tensor(logits.argmax(1), ms.int32)
        mask = ms.Tensor((logits.max(1) - logits.mean(1) > 0.3).astype(np.float32))
        strong = weak + ms.Tensor(np.random.randn(*weak.shape).astype(np.float32) * 0.3)
        loss, grads = grad_fn(xb, yb, strong, pseudo, mask)
        optimizer(grads)
        manager.step(state, {"loss": loss})
    manager.save_final(state)
os._exit(0)
