# truth: differs
# class: global
# head: imports_ops
# Active learning: every fourth step the oracle is asked about the most uncertain sample, and a set of known ones grows.


ms.set_seed(87)
rs = np.random.RandomState(87)
POOL = rs.uniform(-2, 2, (80, 4)).astype(np.float32)


def oracle(i):
    a, b, *_ = POOL[i]
    return int(a * a + b * b > 2)


net = nn.SequentialCell(nn.Dense(4, 12), nn.Tanh(), nn.Dense(12, 2))
loss = nn.WithLossCell(net, nn.CrossEntropyLoss())
cell = ck.AccumulationTrainCell(loss, nn.Adam(net.trainable_params(), 0.02), 1)
cell.set_train()

known: set[int] = set(range(8))


def uncertain(count=3):
    p = ops.softmax(net(ms.Tensor(POOL)), -1).asnumpy()
    margin = np.abs(p[:, 0] - p[:, 1])
    return [i for i in np.argsort(margin, kind="stable").tolist() if i not in known][:count]


def labeled_batch(step, size=8):
    ordered = sorted(known)
    chosen = [ordered[(step * 5 + j) % len(ordered)] for j in range(size)]
    return ms.Tensor(POOL[chosen]), ms.Tensor([oracle(i) for i in chosen], ms.int32)


steps = ck.data.resumable(range(14), epochs=2)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, steps)
    manager.restore(state)
    for step in steps:
        if step % 4 == 3:
            known.update(uncertain())
        x, y = labeled_batch(step)
        cell(x, y)
        manager.step(state)
    manager.save_final(state)
print(f"{len(known)} labels were bought")
os._exit(0)
