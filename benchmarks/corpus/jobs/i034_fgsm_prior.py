# truth: differs
# class: attribute
# head: imports
# Fast adversarial training with prior-guided initialization: the perturbation of every sample from the last epoch starts the next one, in a dict by sample number.


ms.set_seed(334)
EPS, STEP = 0.3, 0.2


class PriorAttack:
    def __init__(self, net, loss_fn):
        self.prior = {}
        self.input_grad = ms.grad(lambda x, y: loss_fn(net(x), y), 0)

    def __call__(self, numbers, x, y):
        start = np.stack([self.prior.get(int(n), np.zeros_like(row)) for n, row in zip(numbers, x)])
        g = self.input_grad(ms.Tensor(x + start), ms.Tensor(y)).asnumpy()
        delta = np.clip(start + STEP * np.sign(g), -EPS, EPS).astype(np.float32)
        self.prior.update((int(n), 0.8 * d) for n, d in zip(numbers, delta))
        return x + delta


net = nn.SequentialCell(nn.Dense(5, 10), nn.Tanh(), nn.Dense(10, 2))
mse = nn.MSELoss()
loss_cell = nn.WithLossCell(net, mse)
cell = ck.AccumulationTrainCell(loss_cell, nn.Momentum(net.trainable_params(), 0.1, 0.9), 2).set_train()
attack = PriorAttack(net, mse)

r = np.random.RandomState(34)
X = r.randn(40, 5).astype(np.float32)
Y = np.eye(2, dtype=np.float32)[(X[:, 0] > X[:, 1]).astype(int)]
rows = [(np.arange(k * 5, k * 5 + 5), X[k * 5 : k * 5 + 5], Y[k * 5 : k * 5 + 5]) for k in range(8)]

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches)
    manager.restore(state)
    for numbers, x, y in batches:
        adversarial = attack(numbers, x, y)
        cell(ms.Tensor(adversarial.astype(np.float32)), ms.Tensor(y))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
