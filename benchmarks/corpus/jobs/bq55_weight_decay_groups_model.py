# truth: exact
# class: other
# head: regression_6_pipeline



net = make_net()
decay = [p for p in net.trainable_params() if "weight" in p.name]
rest = [p for p in net.trainable_params() if "weight" not in p.name]
opt = nn.AdamWeightDecay([{"params": decay, "weight_decay": 0.01}, {"params": rest}], 0.01)
cell = ck.AccumulationTrainCell(nn.WithLossCell(net, nn.MSELoss()), opt, 2)
ck.CheckpointCallback(ROOT, **SAVE).train(ms.Model(cell), 3, pipeline())
os._exit(0)
