# truth: exact
# class: other
# head: accumulating_6_graph
# AdaFactor.

loss = Loss(Net())
optimizer = nn.AdaFactor(loss.trainable_params(), learning_rate=1e-2, relative_step=False, scale_parameter=False)
cell = ck.AccumulationTrainCell(loss, optimizer, 3)
ck.CheckpointCallback(ROOT, **SAVE).train(ms.Model(cell), EPOCHS, slices().batch(6))
