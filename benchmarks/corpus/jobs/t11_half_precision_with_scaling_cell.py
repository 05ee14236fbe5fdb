# truth: exact
# class: other
# head: accumulating_6_graph
# Automatic mixed precision below a train cell that scales the loss.

from mindspore import amp

loss = amp.auto_mixed_precision(Loss(Net()), "O2")
optimizer = nn.Momentum(loss.trainable_params(), 0.01, 0.9)
scaler = amp.DynamicLossScaler(2.0**14, 2, 2)
cell = ck.AccumulationTrainCell(loss, optimizer, 3, loss_scaler=scaler, clip_norm=1.0)
ck.CheckpointCallback(ROOT, **SAVE).train(ms.Model(cell), EPOCHS, slices().batch(6))
