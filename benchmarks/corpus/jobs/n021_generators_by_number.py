# truth: exact
# class: random
# head: imports
# One generator per sensor, all in a list; a dict comprehension gives each of them a name for the StateManager. GRAPH mode, K = 3.


ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(4421)
SENSORS = ("hull", "deck", "mast")


class SensorModel:
    """each sensor has a noise of its own kind, and drops out now and then"""

    def __init__(self, seed):
        self.generators = [np.random.default_rng([seed, number]) for number in range(len(SENSORS))]
        self.dropped = dict.fromkeys(SENSORS, 0)

    def named(self):
        return {f"noise_of_{name}": rng for name, rng in zip(SENSORS, self.generators)}

    def read(self, x):
        columns = []
        for number, (name, rng) in enumerate(zip(SENSORS, self.generators)):
            value = x[:, 2 * number : 2 * number + 2] + rng.normal(0, 0.1 * (number + 1), (len(x), 2))
            if rng.random() < 0.2:
                value = np.zeros_like(value)
                self.dropped[name] += 1
            columns.append(value)
        return np.concatenate(columns, 1).astype(np.float32)


r = np.random.RandomState(21)
rows = []
for _ in range(9):
    x = r.randn(6, 6).astype(np.float32)
    rows.append((x, (x[:, :1] + x[:, 2:3] - x[:, 4:5]).astype(np.float32)))
net = nn.SequentialCell(nn.Dense(6, 10), nn.ReLU(), nn.Dense(10, 1))
loss = nn.WithLossCell(net, nn.MSELoss())
cell = ck.AccumulationTrainCell(loss, nn.Momentum(loss.trainable_params(), 0.05, 0.9), accumulation_steps=3).set_train()
sensors = SensorModel(421)

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=4), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches, **sensors.named())
    manager.restore(state)
    for x, y in batches:
        cell(ms.Tensor(sensors.read(np.asarray(x))), ms.Tensor(np.asarray(y)))
        manager.step(state)
    manager.save_final(state)
    print("dropped in this start:", sensors.dropped)
os._exit(0)
