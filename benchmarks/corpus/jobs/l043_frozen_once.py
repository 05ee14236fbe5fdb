# truth: exact
# class: attribute
# head: pynative
# As soon as a loss is low, the BatchNorm goes to evaluation mode for good; whether that has happened is asked of the cell itself (.training).

ms.set_seed(4143)


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.inner, self.norm, self.outer = nn.Dense(5, 8), nn.BatchNorm1d(8, momentum=0.8), nn.Dense(8, 1)

    def construct(self, x):
        return self.outer(self.norm(self.inner(x)).tanh())


def settle(norm, loss, limit):
    if norm.training and loss < limit:
        print("statistics are fixed from now on")
        norm.set_train(False)


r = np.random.RandomState(43)
rows = []
for _ in range(8):
    x = r.randn(12, 5).astype(np.float32)
    rows.append((ms.Tensor(x), ms.Tensor(np.tanh(x[:, :1] + x[:, 1:2]).astype(np.float32))))
net, mse = Net().set_train(), nn.MSELoss()
opt = nn.Adam(net.trainable_params(), 0.02)
gradients = ms.value_and_grad(lambda x, y: mse(net(x), y), None, net.trainable_params())

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    for x, y in batches:
        settle(net.norm, float(mse(net(x), y).asnumpy()), limit=0.45)
        loss, grads = gradients(x, y)
        opt(grads)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
