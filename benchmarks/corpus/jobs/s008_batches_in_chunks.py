# truth: exact, may be named
# class: data
# head: accumulating_6_pynative
# Each update takes two batches and is followed by one `step`, which says that two were delivered.

loss = Loss(Net()).set_train()
optimizer = nn.Adam(loss.trainable_params(), 1e-2)
gradients_of = ms.value_and_grad(loss, None, optimizer.parameters)
batches = ck.data.resumable(slices().batch(6), EPOCHS + 2)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([loss, optimizer], batches)
    manager.restore(state)
    iterator = iter(batches)
    while chunk := list(itertools.islice(iterator, 2)):
        gradients = [gradients_of(x, y)[1] for x, y in chunk]
        optimizer(tuple(sum(both) / len(chunk) for both in zip(*gradients)))
        manager.step(state)
