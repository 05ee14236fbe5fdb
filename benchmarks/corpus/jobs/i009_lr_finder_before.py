# truth: exact
# class: attribute
# head: imports
# An LR range test on a throw-away copy of the network runs in every start before the restore; it always finds the same rate.



def build(seed, prefix):
    r = np.random.RandomState(seed)
    net = nn.SequentialCell(nn.Dense(5, 8), nn.Tanh(), nn.Dense(8, 1))
    for p in net.get_parameters():
        p.set_data(ms.Tensor((0.3 * r.randn(*p.shape)).astype(np.float32)))
    net.update_parameters_name(prefix)
    return net


class LRFinder:
    """fastai's recipe: grow the rate, remember the losses, take the one of the steepest descent"""

    def __init__(self, start=1e-3, end=1.0, num_it=12):
        self.rates = np.geomspace(start, end, num_it)
        self.losses = []

    def run(self, net, rows):
        mse = nn.MSELoss()
        opt = nn.SGD(net.trainable_params(), learning_rate=[float(v) for v in self.rates])
        vg = ms.value_and_grad(lambda x, y: mse(net(x), y), None, net.trainable_params())
        for k in range(len(self.rates)):
            loss, grads = vg(*rows[k % len(rows)])
            opt(grads)
            self.losses.append(float(loss.asnumpy()))
        return self.suggestion()

    def suggestion(self):
        slopes = np.gradient(np.array(self.losses))
        return float(round(self.rates[int(slopes[1:-2].argmin()) + 1], 4))


ms.set_seed(309)
r = np.random.RandomState(1)
rows = []
for _ in range(8):
    x = r.randn(6, 5).astype(np.float32)
    rows.append((ms.Tensor(x), ms.Tensor((x.sum(1, keepdims=True) * 0.5).astype(np.float32))))

rate = LRFinder().run(build(4, "probe."), rows)
print("suggested learning rate", rate)

net = build(4, "net.")
loss_cell = nn.WithLossCell(net, nn.MSELoss())
cell = ck.AccumulationTrainCell(loss_cell, nn.Momentum(net.trainable_params(), rate * 0.3, 0.9), 2).set_train()
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches)
    manager.restore(state)
    for x, y in batches:
        cell(x, y)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
