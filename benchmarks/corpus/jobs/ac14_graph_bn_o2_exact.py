# truth: exact
# class: other
# head: regression_6_graph_dataset


net = nn.SequentialCell(nn.Dense(6, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Dense(12, 1))
opt = nn.Momentum(net.trainable_params(), nn.exponential_decay_lr(0.05, 0.9, 30, 10, 1), 0.9)
model = ms.Model(net, nn.MSELoss(), opt, amp_level="O0")
ck.CheckpointCallback(ROOT, **SAVE).train(model, 3, train_data, callbacks=[ms.TimeMonitor(10)])
os._exit(0)
