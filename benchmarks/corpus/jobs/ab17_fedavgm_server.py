# truth: differs
# class: attribute
# head: regression_6_rows

net = nn.SequentialCell(nn.Dense(6, 12), nn.Tanh(), nn.Dense(12, 1))

clients = [(X[i : i + 20], Y[i : i + 20]) for i in range(0, 80, 20)]
loss_fn = nn.MSELoss()
opt = nn.SGD(net.trainable_params(), 0.05)
grad_fn = ms.value_and_grad(lambda x, y: loss_fn(net(x), y), None, opt.parameters)


class Server:
    def __init__(self, beta):
        self.beta = beta
        self.velocity = {p.name: np.zeros(p.shape, np.float32) for p in net.trainable_params()}
        self.round = 0

    def select(self):
        picked = [(self.round + k) % len(clients) for k in range(2)]
        self.round += 1
        return picked

    def aggregate(self, before, locals_):
        for p in net.trainable_params():
            delta = before[p.name] - np.mean([l[p.name] for l in locals_], axis=0)
            self.velocity[p.name] = self.beta * self.velocity[p.name] + delta
            ops.assign(p, Tensor(before[p.name] - self.velocity[p.name]))


def weights():
    return {p.name: p.asnumpy().copy() for p in net.trainable_params()}


def local_train(client, before):
    for p in net.trainable_params():
        ops.assign(p, Tensor(before[p.name]))
    x, y = clients[client]
    for i in range(0, 20, 10):
        _, grads = grad_fn(Tensor(x[i : i + 10]), Tensor(y[i : i + 10]))
        opt(grads)
    return weights()


server = Server(0.8)
rounds = ck.data.resumable(range(25), epochs=1)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, opt], rounds)
    manager.restore(state)
    for _ in rounds:
        before = weights()
        server.aggregate(before, [local_train(c, before) for c in server.select()])
        manager.step(state)
    manager.save_final(state)
os._exit(0)
