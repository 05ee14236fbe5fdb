# truth: differs
# class: attribute
# head: imports
# The loop makes its schedule, a subclass of dict, which counts its own calls.


ms.set_seed(308)


class Table(dict):
    def factor(self):
        self["rate"] *= 0.95
        return self["rate"]


net = nn.SequentialCell(nn.Dense(6, 8), nn.Tanh(), nn.Dense(8, 1))
mse = nn.MSELoss()
opt = nn.Momentum(net.trainable_params(), learning_rate=0.02, momentum=0.9)
vg = ms.value_and_grad(lambda x, y: mse(net(x), y), None, net.trainable_params())
r = np.random.RandomState(308)
rows = [(r.randn(6, 6).astype(np.float32), r.randn(6, 1).astype(np.float32)) for _ in range(8)]

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    schedule = Table(rate=1.0)
    for x, y in batches:
        loss, grads = vg(ms.Tensor(x * np.float32(schedule.factor())), ms.Tensor(y))
        opt(grads)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
