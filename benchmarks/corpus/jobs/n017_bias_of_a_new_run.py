# truth: exact, may be named
# class: variable
# head: imports_dataset_ops
# Only if nothing was restored, the output bias is set to the mean of the targets, after the restore; a resumed run has it from its checkpoint. GRAPH, K = 2.


ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(4417)

r = np.random.RandomState(17)
x = r.randn(48, 4).astype(np.float32)
y = (7 + x[:, :1] * x[:, 1:2]).astype(np.float32)
data = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=True).batch(6)
net = nn.SequentialCell(nn.Dense(4, 10), nn.Tanh(), nn.Dense(10, 1))
loss = nn.WithLossCell(net, nn.MSELoss())
cell = ck.AccumulationTrainCell(loss, nn.Adam(loss.trainable_params(), 0.02), accumulation_steps=2).set_train()

batches = ck.data.resumable(data, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches)
    point = manager.restore(state)
    if point.checkpoint is None:
        print(f"a new run: output bias {y.mean():.3f}")
        ops.assign(net[2].bias, ms.Tensor(y.mean(0)))
    else:
        print(f"output bias is {net[2].bias.asnumpy()[0]:.3f} after {point.batches_delivered} batches")
    for a, b in batches:
        cell(a, b)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
