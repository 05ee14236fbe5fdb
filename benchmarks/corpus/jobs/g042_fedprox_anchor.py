# truth: exact
# class: global
# head: imports_ops
# FedProx: the proximal term pulls to the global model, which is a frozen twin cell given by name and renewed at the end of each epoch.


ms.set_seed(48)


class LocalModel(nn.Cell):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Dense(7, 8)
        self.out = nn.Dense(8, 1)

    def construct(self, x):
        return self.out(ops.relu(self.hidden(x)))


class ProximalTrainer:
    mu = 0.5

    def __init__(self):
        self.local = LocalModel()
        self.anchor = LocalModel()
        self.anchor.update_parameters_name("anchor.")
        self.sync()
        for p in self.anchor.get_parameters():
            p.requires_grad = False
        self.params = self.local.trainable_params()
        self.anchors = list(self.anchor.get_parameters())
        self.opt = nn.SGD(self.params, learning_rate=0.1)
        self.vg = ms.value_and_grad(self.objective, None, self.params)

    def objective(self, x, y):
        prox = 0.0
        for p, a in zip(self.params, self.anchors):
            prox = prox + ((p - a) ** 2).sum()
        return ((self.local(x) - y) ** 2).mean() + 0.5 * self.mu * prox

    def sync(self):
        """server step: half of the way towards the client's model"""
        for a, p in zip(self.anchor.get_parameters(), self.local.get_parameters()):
            ops.assign(a, ms.Tensor(0.5 * a.asnumpy() + 0.5 * p.asnumpy()))

    def step(self, x, y):
        loss, grads = self.vg(x, y)
        self.opt(grads)
        return loss


trainer = ProximalTrainer()
r = np.random.RandomState(15)
client_data = []
for client in range(9):
    x = (r.randn(6, 7) + 0.1 * client).astype(np.float32)
    client_data.append((ms.Tensor(x), ms.Tensor((x[:, :1] - 0.2 * client).astype(np.float32))))

batches = ck.data.resumable(client_data, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([trainer.local, trainer.opt], batches, anchor=trainer.anchor)
    at = manager.restore(state).batches_delivered
    for x, y in batches:
        loss = trainer.step(x, y)
        at += 1
        if at % len(client_data) == 0:
            manager.fence()
            trainer.sync()
        manager.step(state)
    manager.save_final(state)
os._exit(0)
