# truth: exact, may be named
# class: other
# head: regression_8_dataset

stats = {"max": 0.0}


def hook(cell, inputs, output):
    stats["max"] = max(stats["max"] * 0.95, float(ops.abs(output).max()))
    return output / (1 + stats["max"])


net[0].register_forward_hook(hook)
loss = nn.WithLossCell(net, loss_fn)
optimizer = nn.Adam(loss.trainable_params(), 0.01)
cell = ck.AccumulationTrainCell(loss, optimizer, 3)
ck.CheckpointCallback(ROOT, **SAVE).train(ms.Model(cell), 3, data)
os._exit(0)
