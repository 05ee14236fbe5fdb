# truth: exact
# class: other
# head: regression_8_dataset

loss = nn.WithLossCell(net, loss_fn)
optimizer = nn.Adam(loss.trainable_params(), 0.01)
cell = ck.AccumulationTrainCell(loss, optimizer, 2, loss_scaler=ms.amp.DynamicLossScaler(2.0**10, 2, 5))
ck.CheckpointCallback(ROOT, **SAVE).train(ms.Model(cell), 3, data, callbacks=[ms.TimeMonitor(), ms.LossMonitor()])
os._exit(0)
