# truth: differs
# class: attribute
# head: imports_ops
# Federated learning with SCAFFOLD: control variates of server and clients are kept in the clients' objects.


ms.set_seed(16)


class Client:
    def __init__(self, number, shapes):
        r = np.random.RandomState(number)
        self.x = r.randn(10, 5).astype(np.float32) + 0.3 * number
        self.y = (self.x @ np.roll(np.arange(5), number)[:, None] * 0.2).astype(np.float32)
        self.c = [np.zeros(s, np.float32) for s in shapes]

    def local(self, server, grad_fn, weights, steps=3, lr=0.05):
        start = [w.asnumpy().copy() for w in weights]
        for _ in range(steps):
            for w, g, ci, c in zip(weights, grad_fn(ms.Tensor(self.x), ms.Tensor(self.y)), self.c, server.c):
                ops.assign(w, w - lr * (g - ms.Tensor(ci) + ms.Tensor(c)))
        delta = [w.asnumpy() - s for w, s in zip(weights, start)]
        for w, s in zip(weights, start):
            ops.assign(w, ms.Tensor(s))
        new = [ci - c - d / (steps * lr) for ci, c, d in zip(self.c, server.c, delta)]
        change = [n - o for n, o in zip(new, self.c)]
        self.c = new
        return delta, change


class Server:
    def __init__(self, net, clients):
        self.weights = net.trainable_params()
        shapes = [w.shape for w in self.weights]
        self.c = [np.zeros(s, np.float32) for s in shapes]
        self.clients = [Client(k, shapes) for k in range(clients)]
        mse = nn.MSELoss()
        self.grad_fn = ms.grad(lambda x, y: mse(net(x), y), None, self.weights)

    def round(self, chosen):
        picked = [self.clients[k].local(self, self.grad_fn, self.weights) for k in chosen]
        for i, w in enumerate(self.weights):
            ops.assign(w, w + ms.Tensor(sum(d[i] for d, _ in picked) / len(picked)))
            self.c[i] = self.c[i] + sum(ch[i] for _, ch in picked) / len(self.clients)


net = nn.SequentialCell(nn.Dense(5, 6), nn.Tanh(), nn.Dense(6, 1))
server = Server(net, 4)
rounds = ck.data.resumable([[0, 1], [2, 3], [1, 2], [3, 0], [0, 2], [1, 3]], epochs=4)
with ck.CheckpointManager(
    os.environ["ROOT"],
    save=ck.SaveEvery(micro_steps=5),
    saving=ck.Saving(when_busy="wait", window="off"),
) as manager:
    state = ck.StateManager(net, rounds)
    manager.restore(state)
    for chosen in rounds:
        server.round(chosen)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
