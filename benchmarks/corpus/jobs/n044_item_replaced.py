# truth: differs
# class: attribute
# head: pynative
# At the end of each epoch the batch with the largest loss is taken for mislabelled, and its place in the list of batches gets a new one with clipped targets.

ms.set_seed(4444)
PER_EPOCH = 10


class Cleaner:
    def __init__(self, rows, limit):
        self.rows, self.limit = rows, limit
        self.losses = np.zeros(len(rows))

    def note(self, number, loss):
        self.losses[number] = loss

    def clean_worst(self):
        worst = int(self.losses.argmax())
        number, x, y = self.rows[worst]
        clipped = np.clip(y.asnumpy(), -self.limit, self.limit) * 0.5
        self.rows[worst] = (number, x, ms.Tensor(clipped))
        print(f"batch {worst} was cleaned")


r = np.random.RandomState(44)
rows = []
for number in range(PER_EPOCH):
    x = r.randn(6, 5).astype(np.float32)
    y = x[:, :1] + x[:, 1:2] * x[:, 2:3] + 2.0 * r.standard_t(2, (6, 1))
    rows.append((number, ms.Tensor(x), ms.Tensor(y.astype(np.float32))))
net = nn.SequentialCell(nn.Dense(5, 10), nn.Tanh(), nn.Dense(10, 1))
loss = nn.WithLossCell(net, nn.MSELoss())
opt = nn.Momentum(loss.trainable_params(), 0.02, 0.8)
cell = ck.AccumulationTrainCell(loss, opt, accumulation_steps=1).set_train()
cleaner = Cleaner(rows, limit=1.0)

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches, cleaner=ck.attributes(cleaner, "losses"))
    manager.restore(state)
    for number, x, y in batches:
        cleaner.note(int(number), float(cell(x, y).asnumpy()))
        if int(number) == PER_EPOCH - 1:
            cleaner.clean_worst()
        manager.step(state)
    manager.save_final(state)
os._exit(0)
