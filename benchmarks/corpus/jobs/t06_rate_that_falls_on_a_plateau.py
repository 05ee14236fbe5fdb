# truth: exact
# class: other
# head: accumulating_6_pynative
# A scheduler that keeps the best loss, given by name.

from mindspore.experimental import optim

loss = Loss(Net()).set_train()
weights = loss.trainable_params()
optimizer = optim.SGD([{"params": weights[:2], "lr": 0.05}, {"params": weights[2:]}], 0.02, momentum=0.9)
scheduler = optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5, threshold=0.5)
gradients_of = ms.value_and_grad(loss, None, optimizer.parameters)
batches = ck.data.resumable(slices().batch(6), EPOCHS)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([loss, optimizer], batches, scheduler=scheduler)
    manager.restore(state)
    for x, y in batches:
        value, gradients = gradients_of(x, y)
        optimizer(gradients)
        scheduler.step(value)
        manager.step(state)
