# truth: differs
# class: variable
# head: imports_tensor_ops
# Sequence packing by the collate function: what does not fill a row stays in its list `spill` and begins the next batch's rows.


ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(3142)


def make_collate(length):
    spill: list[float] = []

    def collate(pieces):
        for piece in pieces:
            spill.extend(piece)
        usable = len(spill) // length * length
        rows = np.array(spill[:usable], np.float32).reshape(-1, length)
        del spill[:usable]
        return rows

    return collate


rng = np.random.default_rng(42)
signals = [[np.cumsum(rng.normal(size=rng.integers(6, 14))).astype(np.float32) for _ in range(5)] for _ in range(8)]

net = nn.SequentialCell(nn.Dense(6, 8), nn.Tanh(), nn.Dense(8, 1))
opt = nn.Momentum(net.trainable_params(), 0.02, 0.9)
vg = ms.value_and_grad(lambda x, y: ((net(x) - y) ** 2).mean(), None, net.trainable_params())
collate = make_collate(7)

batches = ck.data.resumable(signals, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    for pieces in batches:
        rows = collate(pieces)
        loss, grads = vg(Tensor(rows[:, :6]), Tensor(rows[:, 6:]))
        opt(ops.clip_by_global_norm(grads, 1.0))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
