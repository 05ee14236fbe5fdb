# truth: exact, may be named
# class: variable
# head: regression_8_train_step



teacher = nn.Dense(8, 1, weight_init="ones", bias_init="zeros")
teacher.set_train(False)
for p in teacher.get_parameters():
    p.requires_grad = False
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches)
    point = manager.restore(state)
    for x, y in batches:
        train_step(x, 0.5 * y + 0.5 * ops.stop_gradient(teacher(x)))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
