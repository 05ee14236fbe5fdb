# truth: exact
# class: attribute
# head: regression_8_rows
# the averaged weights are parameters of a cell that is given by name; every update is pulled towards them



class WeightEMA(nn.Cell):
    def __init__(self, parameters, decay):
        super().__init__()
        self.decay = decay
        self.average = parameters.clone(prefix="average", init="same")

    def update(self, parameters):
        for a, p in zip(self.average, parameters):
            ops.assign(a, self.decay * a + (1 - self.decay) * p)

    def pull(self, parameters, strength):
        for a, p in zip(self.average, parameters):
            ops.assign(p, (1 - strength) * p + strength * a)


net = nn.SequentialCell(nn.Dense(8, 8), nn.ReLU(), nn.Dense(8, 1))
loss_fn = nn.MSELoss()
network = nn.WithLossCell(net, loss_fn)
optimizer = nn.Momentum(network.trainable_params(), 0.05, 0.9)
cell = ck.AccumulationTrainCell(network, optimizer, accumulation_steps=2).set_train()
ema = WeightEMA(optimizer.parameters, 0.8)

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager(cell, batches, ema=ema)
    manager.restore(state)
    for x, y in batches:
        cell(x, y)
        if cell.updated:
            manager.fence()
            ema.update(optimizer.parameters)
            ema.pull(optimizer.parameters, 0.1)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
