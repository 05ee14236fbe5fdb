# truth: exact
# class: data
# head: imports_hashlib
# A loader with a state of its own samples by weights that the loop updates with the losses, before the save.


ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(55)


class WeightedLoader:
    def __init__(self, x, y, size, per_epoch):
        self.x, self.y, self.size, self.per_epoch = x, y, size, per_epoch
        self.weights = np.ones(len(x))
        self.epoch, self.batch = 0, 0

    def __len__(self):
        return self.per_epoch

    def __iter__(self):
        while True:
            epoch, batch = self.epoch, self.batch
            rng = ck.data.sample_rng(55, epoch, batch)
            chosen = rng.choice(len(self.x), self.size, replace=False, p=self.weights / self.weights.sum())
            self.batch += 1
            if self.batch == self.per_epoch:
                self.epoch, self.batch = epoch + 1, 0
            yield chosen, self.x[chosen], self.y[chosen]
            if batch + 1 == self.per_epoch:
                return

    def tell(self, chosen, losses):
        self.weights[chosen] = 0.2 + losses

    def state_dict(self):
        return {"weights": self.weights.copy(), "epoch": self.epoch, "batch": self.batch}

    def load_state_dict(self, state):
        self.weights = np.array(state["weights"])
        self.epoch, self.batch = state["epoch"], state["batch"]


r = np.random.RandomState(45)
x = r.randn(40, 5).astype(np.float32)
loader = WeightedLoader(x, np.abs(x[:, :1]), 8, 7)
net = nn.SequentialCell(nn.Dense(5, 10), nn.ReLU(), nn.Dense(10, 1))
opt = nn.Adam(net.trainable_params(), 0.02)


def forward(a, b):
    each = (net(a) - b) ** 2
    return each.mean(), each


grad_fn = ms.value_and_grad(forward, None, opt.parameters, has_aux=True)
batches = ck.data.resumable(loader, epochs=4)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    for chosen, a, b in batches:
        (loss, each), grads = grad_fn(ms.Tensor(a), ms.Tensor(b))
        opt(grads)
        loader.tell(chosen, each.asnumpy()[:, 0])
        manager.step(state)
    manager.save_final(state)
print(hashlib.sha256(b"".join(p.asnumpy().tobytes() for p in net.get_parameters())).hexdigest(), flush=True)
os._exit(0)
