# truth: exact
# class: other
# head: regression_8_dataset

optimizer = nn.Momentum(net.trainable_params(), 0.05, 0.9)
cell = ck.AccumulationTrainCell(nn.WithLossCell(net, loss_fn), optimizer, 3, clip_norm=1.0)
ck.CheckpointCallback(ROOT, **SAVE).train(ms.Model(cell), 3, data)
os._exit(0)
