# truth: differs
# class: attribute
# head: regression_8_rows
# averaged weights per parameter name in a dict, reached through a tracker; every update is pulled towards them



class Tracker:
    def __init__(self, decay):
        self.decay = decay
        self._slots = {}

    def slot(self, parameter):
        return self._slots.setdefault(parameter.name, {"average": parameter.asnumpy().copy(), "n": 0})

    def track(self, parameter):
        slot = self.slot(parameter)
        slot["n"] += 1
        d = min(self.decay, slot["n"] / (slot["n"] + 3))
        slot["average"] *= d
        slot["average"] += (1 - d) * parameter.asnumpy()

    def pulled(self, parameter, strength):
        return (1 - strength) * parameter + strength * Tensor(self.slot(parameter)["average"].copy())


net = nn.SequentialCell(nn.Dense(8, 8), nn.ReLU(), nn.Dense(8, 1))
loss_fn = nn.MSELoss()
network = nn.WithLossCell(net, loss_fn)
optimizer = nn.Momentum(network.trainable_params(), 0.05, 0.9)
cell = ck.AccumulationTrainCell(network, optimizer, accumulation_steps=2).set_train()


def after_update(tracker, parameters):
    for p in parameters:
        tracker.track(p)
        ops.assign(p, tracker.pulled(p, 0.1))


batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager(cell, batches)
    manager.restore(state)
    tracker = Tracker(0.8)
    for x, y in batches:
        cell(x, y)
        if cell.updated:
            manager.fence()
            after_update(tracker, optimizer.parameters)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
