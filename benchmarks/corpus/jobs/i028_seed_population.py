# truth: exact
# class: attribute
# head: imports
# Deep ensemble of three seeds trained in turn: which member gets the batch follows the number that restore() returns; all members are in one CellList.


ms.set_seed(328)


def member(seed):
    r = np.random.RandomState(seed)
    net = nn.SequentialCell(nn.Dense(4, 7), nn.Tanh(), nn.Dense(7, 1))
    for p in net.get_parameters():
        p.set_data(ms.Tensor((0.4 * r.randn(*p.shape)).astype(np.float32)))
    return net


class Ensemble(nn.Cell):
    def __init__(self, seeds):
        super().__init__()
        self.members = nn.CellList([member(s) for s in seeds])

    def construct(self, x):
        total = self.members[0](x)
        for k in range(1, len(self.members)):
            total = total + self.members[k](x)
        return total / len(self.members)


ensemble = Ensemble((1, 2, 3))
mse = nn.MSELoss()
optimizers = {f"opt{k}": nn.Adam(m.trainable_params(), 0.02) for k, m in enumerate(ensemble.members)}
steps = [
    (ms.value_and_grad(lambda x, y, m=m: mse(m(x), y), None, m.trainable_params()), optimizers[f"opt{k}"])
    for k, m in enumerate(ensemble.members)
]

r = np.random.RandomState(55)
rows = [
    (ms.Tensor(x), ms.Tensor((x[:, :1] * np.cos(x[:, 1:2])).astype(np.float32)))
    for x in (r.randn(6, 4).astype(np.float32) for _ in range(8))
]
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([ensemble], batches, **optimizers)
    point = manager.restore(state)
    for at, (x, y) in enumerate(batches, point.batches_delivered):
        for k, (vg, opt) in enumerate(steps):
            if (at + k) % 3 == 2:
                continue  # each batch trains two of three
            loss, grads = vg(x, y)
            opt(grads)
        manager.step(state)
    spread = np.std([m(rows[0][0]).asnumpy() for m in ensemble.members], axis=0).mean()
    print("disagreement", spread)
    manager.save_final(state)
os._exit(0)
