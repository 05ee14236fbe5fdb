# truth: exact
# class: iterator
# head: pynative
# What a batch is trained on is decided by a match statement on (epoch, place in the epoch), both from the restored position; the phase is printed.

ms.set_seed(4158)
PER_EPOCH = 8


def plan(number):
    """(name of the phase, weight of the auxiliary loss, columns that are hidden)"""
    match divmod(number, PER_EPOCH):
        case (0, place) if place < 4:
            return "warm-up", 0.0, slice(0, 0)
        case (0, _):
            return "first", 0.3, slice(0, 0)
        case (epoch, 0 | 1):
            return f"refresh {epoch}", 0.6, slice(0, 1)
        case (epoch, place) if place % 3 == 2:
            return f"masked {epoch}", 0.3, slice(place % 5, place % 5 + 1)
        case _:
            return "plain", 0.1, slice(0, 0)


class TwoHeads(nn.Cell):
    def __init__(self):
        super().__init__()
        self.body, self.main, self.side = nn.Dense(5, 8), nn.Dense(8, 1), nn.Dense(8, 5)
        self.mse = nn.MSELoss()

    def construct(self, x, target, original, weight):
        h = self.body(x).tanh()
        return self.mse(self.main(h), target) + weight * self.mse(self.side(h), original)


r = np.random.RandomState(58)
rows = []
for _ in range(PER_EPOCH):
    x = r.randn(8, 5).astype(np.float32)
    rows.append((x, ms.Tensor(x.prod(1, keepdims=True))))
net = TwoHeads()
cell = ck.AccumulationTrainCell(net, nn.Adam(net.trainable_params(), 0.02), accumulation_steps=3).set_train()

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches)
    number = manager.restore(state).batches_delivered
    stream, shown = iter(batches), None
    while True:
        try:
            x, y = next(stream)
        except StopIteration:
            break
        phase, weight, hidden = plan(number)
        if phase != shown:
            print(f"batch {number}: {phase}")
            shown = phase
        masked = x.copy()
        masked[:, hidden] = 0
        cell(ms.Tensor(masked), y, ms.Tensor(x), ms.Tensor(weight, ms.float32))
        number += 1
        manager.step(state)
    manager.save_final(state)
os._exit(0)
