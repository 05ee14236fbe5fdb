# truth: exact
# class: other
# head: regression_6_graph_dataset


net = nn.SequentialCell(nn.Dense(6, 12), nn.Tanh(), nn.Dense(12, 1))
lr = nn.cosine_decay_lr(0.0, 0.05, 12, 4, 3)
opt = nn.AdamWeightDecay(net.trainable_params(), lr, weight_decay=0.01)
cell = ck.AccumulationTrainCell(nn.WithLossCell(net, nn.MSELoss()), opt, accumulation_steps=3, clip_norm=1.0)
ck.CheckpointCallback(ROOT, **SAVE).train(ms.Model(cell), 3, train_data, callbacks=[ms.LossMonitor(5)])
os._exit(0)
