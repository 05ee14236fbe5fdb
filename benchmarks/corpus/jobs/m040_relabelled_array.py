# truth: refused
# class: variable
# head: pynative
# Noisy labels are refurbished: the loop mixes the network's opinion into one big array of labels, of which the batches in the list are views.

ms.set_seed(4340)
SIZE = 6


def make_data(seed, count):
    r = np.random.RandomState(seed)
    x = r.randn(count, 5).astype(np.float32)
    clean = np.tanh(x[:, :1] * 2 + x[:, 1:2])
    noisy = np.where(r.rand(count, 1) < 0.25, -clean, clean).astype(np.float32)
    return x, noisy


def refurbish(labels, start, opinion, trust):
    """labels become a little of what the network believes"""
    part = labels[start : start + len(opinion)]
    part *= 1 - trust
    part += trust * opinion


x, labels = make_data(40, 48)
rows = [(start, x[start : start + SIZE], labels[start : start + SIZE]) for start in range(0, len(x), SIZE)]
net = nn.SequentialCell(nn.Dense(5, 8), nn.Tanh(), nn.Dense(8, 1))
loss = nn.WithLossCell(net, nn.MSELoss())
cell = ck.AccumulationTrainCell(loss, nn.Momentum(loss.trainable_params(), 0.05, 0.9), accumulation_steps=1).set_train()

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches)
    manager.restore(state)
    for start, a, b in batches:
        a = ms.Tensor(a)
        value = float(cell(a, ms.Tensor(b.copy())).asnumpy())
        refurbish(labels, int(start), net(a).asnumpy(), trust=0.2)
        print(f"{int(start):3} loss {value:.4f}")
        manager.step(state)
    manager.save_final(state)
os._exit(0)
