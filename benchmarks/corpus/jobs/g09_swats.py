# truth: differs
# class: variable
# head: regression_8_train_step



sgd = nn.SGD(net.trainable_params(), 0.01)
sgd.update_parameters_name("sgd.")
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches, sgd=sgd)
    point = manager.restore(state)
    current = optimizer
    for i, (x, y) in enumerate(batches, point.batches_delivered):
        if i == 10:
            current = sgd
        loss, grads = grad_fn(x, y)
        current(grads)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
