# truth: exact
# class: other
# head: accumulating_6_graph
# Two optimizers over the two halves of a network, in one loop.

loss = Loss(Net()).set_train()
weights = loss.trainable_params()
first, second = nn.AdaMax(weights[:2], 1e-2), nn.Adam(weights[2:], 1e-2, use_amsgrad=True)
second.update_parameters_name("second.")
gradients_of = ms.value_and_grad(loss, None, ms.ParameterTuple(weights))


@ms.jit
def step(x, y):
    value, gradients = gradients_of(x, y)
    value = ops.depend(value, first(gradients[:2]))
    return ops.depend(value, second(gradients[2:]))


batches = ck.data.resumable(slices().batch(6), EPOCHS)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([loss, first], batches, second=second)
    manager.restore(state)
    for x, y in batches:
        step(x, y)
        manager.step(state)
