# truth: differs
# class: attribute
# head: imports
# Federated simulation with Oort-like client selection: utility and last round of every client are in a dict of dicts in the server object.


ms.set_seed(301)
CLIENTS = 5


class Server:
    def __init__(self, net, lr):
        self.net = net
        self.mse = nn.MSELoss()
        self.opt = nn.SGD(net.trainable_params(), learning_rate=lr)
        self.grad = ms.value_and_grad(lambda x, y: self.mse(self.net(x), y), None, net.trainable_params())
        self.clients = {c: {"utility": 0.0, "seen": -1} for c in range(CLIENTS)}

    def select(self, rnd, count=2):
        def score(c):
            info = self.clients[c]
            if info["seen"] < 0:
                return 1e6 - c
            return info["utility"] + 0.05 * np.sqrt(rnd - info["seen"])

        return sorted(self.clients, key=score, reverse=True)[:count]

    def round(self, rnd, xs, ys):
        picked = self.select(rnd)
        total = None
        for c in picked:
            loss, grads = self.grad(ms.Tensor(xs[c]), ms.Tensor(ys[c]))
            self.clients[c].update(utility=float(loss.asnumpy()), seen=rnd)
            total = grads if total is None else tuple(a + b for a, b in zip(total, grads))
        self.opt(tuple(g / len(picked) for g in total))


def make_rounds(n=8):
    r = np.random.RandomState(7)
    w = r.randn(CLIENTS, 4, 1)
    out = []
    for _ in range(n):
        xs = r.randn(CLIENTS, 6, 4)
        out.append((xs.astype(np.float32), np.einsum("cbi,cio->cbo", xs, w).astype(np.float32)))
    return out


server = Server(nn.SequentialCell(nn.Dense(4, 6), nn.Tanh(), nn.Dense(6, 1)), 0.05)
rounds = ck.data.resumable(make_rounds(), epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([server.net, server.opt], rounds)
    point = manager.restore(state)
    for rnd, (xs, ys) in enumerate(rounds, point.batches_delivered):
        server.round(rnd, xs, ys)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
