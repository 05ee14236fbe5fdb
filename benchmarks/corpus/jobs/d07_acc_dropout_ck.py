# truth: exact
# class: random
# head: regression_8_dataset

net2 = nn.SequentialCell(nn.Dense(8, 8), ck.nn.Dropout(p=0.3, seed=2), nn.Dense(8, 1))
loss = nn.WithLossCell(net2, loss_fn)
optimizer = nn.Adam(loss.trainable_params(), 0.01)
cell = ck.AccumulationTrainCell(loss, optimizer, 4, remainder="flush")
ck.CheckpointCallback(ROOT, **SAVE).train(ms.Model(cell), 3, data)
os._exit(0)
