# truth: exact
# class: random
# head: imports_hashlib
# Active learning: each round the most uncertain sample joins the labelled pool, whose state is stored by name.


ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(54)


class Pool:
    def __init__(self, x, y, first):
        self.x, self.y = x, y
        self.labelled = list(range(first))

    def batch(self, size):
        chosen = np.random.choice(self.labelled, size)
        return ms.Tensor(self.x[chosen]), ms.Tensor(self.y[chosen])

    def query(self, net):
        out = net(ms.Tensor(self.x)).asnumpy()[:, 0]
        doubt = np.abs(out - 0.5)
        doubt[self.labelled] = np.inf
        self.labelled.append(int(doubt.argmin()))

    def state_dict(self):
        return {"labelled": self.labelled}

    def load_state_dict(self, state):
        self.labelled = list(state["labelled"])


r = np.random.RandomState(44)
x = r.randn(60, 4).astype(np.float32)
pool = Pool(x, (x[:, :1] + x[:, 1:2] > 0).astype(np.float32), first=6)
net = nn.SequentialCell(nn.Dense(4, 8), nn.Tanh(), nn.Dense(8, 1), nn.Sigmoid())
opt = nn.Adam(net.trainable_params(), 0.02)
mse = nn.MSELoss()
grad_fn = ms.value_and_grad(lambda a, b: mse(net(a), b), None, opt.parameters)
run = ck.loop(
    os.environ["ROOT"],
    [np.int32(k) for k in range(6)],
    epochs=5,
    train=[net, opt],
    stateful={"pool": pool},
    save=ck.SaveEvery(micro_steps=5),
    saving=ck.Saving(when_busy="wait"),
)
for _ in run:
    number = run.step
    loss, grads = grad_fn(*pool.batch(6))
    opt(grads)
    if number % 3 == 2:
        pool.query(net)
print(hashlib.sha256(b"".join(p.asnumpy().tobytes() for p in net.get_parameters())).hexdigest(), flush=True)
os._exit(0)
