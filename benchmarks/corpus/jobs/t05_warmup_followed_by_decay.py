# truth: exact
# class: other
# head: accumulating_6_pynative
# A scheduler of `mindspore.experimental` of two parts, given by name.

from mindspore.experimental import optim

loss = Loss(Net()).set_train()
weights = loss.trainable_params()
optimizer = optim.Adam([{"params": weights[:2], "lr": 0.05}, {"params": weights[2:]}], 0.02)
warmup = optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=12)
decay = optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
scheduler = optim.lr_scheduler.SequentialLR(optimizer, [warmup, decay], [12])
gradients_of = ms.value_and_grad(loss, None, optimizer.parameters)
batches = ck.data.resumable(slices().batch(6), EPOCHS)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([loss, optimizer], batches, scheduler=scheduler)
    manager.restore(state)
    for x, y in batches:
        value, gradients = gradients_of(x, y)
        optimizer(gradients)
        scheduler.step()
        manager.step(state)
