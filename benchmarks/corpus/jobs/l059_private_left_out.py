# truth: differs
# class: attribute
# head: pynative
# A base class gives state_dict by all attributes without a leading underscore; the balancer keeps its running losses in `_running`.

ms.set_seed(4159)


class Stateful:
    """public attributes are state, private ones are not"""

    def state_dict(self):
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}

    def load_state_dict(self, state):
        vars(self).update(state)


class Balancer(Stateful):
    def __init__(self, tasks, decay):
        self.decay, self.steps, self.share = decay, 0, [1 / tasks] * tasks
        self._running = [1.0] * tasks

    def weights(self, losses):
        self.steps += 1
        self._running = [self.decay * a + (1 - self.decay) * b for a, b in zip(self._running, losses)]
        relative = [b / a for a, b in zip(self._running, losses)]
        self.share = [v / sum(relative) for v in relative]
        return self.share


class Tasks(nn.Cell):
    def __init__(self):
        super().__init__()
        self.body, self.heads = nn.Dense(5, 8), nn.Dense(8, 2)

    def construct(self, x, y):
        return ((self.heads(self.body(x).tanh()) - y) ** 2).mean(0)


class Weighted(nn.Cell):
    def __init__(self, tasks):
        super().__init__()
        self.tasks = tasks

    def construct(self, x, y, weights):
        return (self.tasks(x, y) * weights).sum()


r = np.random.RandomState(59)
rows = []
for _ in range(8):
    x = r.randn(8, 5).astype(np.float32)
    y = np.concatenate([x[:, :1] * x[:, 1:2], np.abs(x[:, 2:3])], 1)
    rows.append((ms.Tensor(x), ms.Tensor(y)))
tasks = Tasks()
net = Weighted(tasks)
cell = ck.AccumulationTrainCell(net, nn.Adam(net.trainable_params(), 0.02), accumulation_steps=2).set_train()
balancer = Balancer(2, 0.9)

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches, balancer=balancer)
    manager.restore(state)
    for x, y in batches:
        losses = [float(v) for v in tasks(x, y).asnumpy()]
        cell(x, y, ms.Tensor(balancer.weights(losses), ms.float32))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
