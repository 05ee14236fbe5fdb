# truth: exact
# class: other
# head: accumulating_6_graph
# Groups of parameters with rates of their own, and a weight decay that falls with the steps.

class FallingDecay(nn.Cell):
    def construct(self, step):
        return 0.01 / (1.0 + step.astype(ms.float32))


loss = Loss(Net())
weights = loss.trainable_params()
groups = [
    {"params": weights[:2], "lr": nn.CosineDecayLR(1e-4, 1e-2, 5), "weight_decay": FallingDecay()},
    {"params": weights[2:], "lr": 1e-2},
    {"order_params": weights},
]
cell = ck.AccumulationTrainCell(loss, nn.AdamWeightDecay(groups, 1e-3), 3)
ck.CheckpointCallback(ROOT, **SAVE).train(ms.Model(cell), EPOCHS, slices().batch(6))
