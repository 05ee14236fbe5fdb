# truth: differs
# class: attribute
# head: imports
# Virtual batches: small batches wait in a list until there are 16 rows, which are then concatenated and trained at once.


ms.set_seed(323)


def collate(pending):
    return tuple(ms.Tensor(np.concatenate(column)) for column in zip(*pending))


class Trainer:
    target_rows = 16

    def __init__(self, net):
        self.net = net
        self.opt = nn.Adam(net.trainable_params(), 0.03)
        mse = nn.MSELoss()
        self.vg = ms.value_and_grad(lambda x, y: mse(net(x), y), None, net.trainable_params())
        self.pending = []

    def feed(self, batch):
        self.pending.append(batch)
        if sum(len(x) for x, _ in self.pending) < self.target_rows:
            return None
        loss, grads = self.vg(*collate(self.pending))
        self.opt(grads)
        self.pending = []
        return loss


r = np.random.RandomState(18)
rows = []
for k in range(8):
    x = r.randn(3 + k % 3, 4).astype(np.float32)
    rows.append((x, (x[:, :1] - x[:, 1:2] ** 2).astype(np.float32)))

trainer = Trainer(nn.SequentialCell(nn.Dense(4, 8), nn.Tanh(), nn.Dense(8, 1)))
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([trainer.net, trainer.opt], batches)
    manager.restore(state)
    for batch in batches:
        trainer.feed(batch)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
