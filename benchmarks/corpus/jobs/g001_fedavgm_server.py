# truth: differs
# class: attribute
# head: imports_ops
# FedAvgM: the server object holds the global weights and their momentum between rounds, only the net in use is stored.


ms.set_seed(21)
LOCAL_STEPS, CLIENTS = 2, 2


class Server:
    def __init__(self, params, beta=0.9):
        self.params = params
        self.beta = beta
        self.weights = [p.asnumpy().copy() for p in params]
        self.velocity = [np.zeros_like(w) for w in self.weights]
        self.inbox = []

    def broadcast(self):
        for p, w in zip(self.params, self.weights):
            ops.assign(p, ms.Tensor(w))

    def receive(self):
        self.inbox.append([p.asnumpy() - w for p, w in zip(self.params, self.weights)])

    def aggregate(self):
        for i in range(len(self.weights)):
            delta = np.mean([update[i] for update in self.inbox], axis=0)
            self.velocity[i] = (self.beta * self.velocity[i] + delta).astype(np.float32)
            self.weights[i] = self.weights[i] + 0.5 * self.velocity[i]
        self.inbox.clear()
        self.broadcast()


rs = np.random.RandomState(0)
X = rs.randn(8, 6, 10).astype(np.float32)
Y = (X[:, :, :2].sum(-1, keepdims=True) + np.arange(8)[:, None, None] % 2).astype(np.float32)
rows = [(ms.Tensor(x), ms.Tensor(y)) for x, y in zip(X, Y)]

net = nn.SequentialCell(nn.Dense(10, 6), nn.ReLU(), nn.Dense(6, 1))
mse = nn.MSELoss()
opt = nn.SGD(net.trainable_params(), learning_rate=0.05)
grad_fn = ms.value_and_grad(lambda x, y: mse(net(x), y), None, net.trainable_params())

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches)
    point = manager.restore(state)
    server = Server(net.trainable_params())
    for n, (x, y) in enumerate(batches, point.batches_delivered):
        turn = n % (LOCAL_STEPS * CLIENTS)
        manager.fence()
        if turn % LOCAL_STEPS == 0:
            server.broadcast()
        loss, grads = grad_fn(x, y)
        opt(grads)
        if turn % LOCAL_STEPS == LOCAL_STEPS - 1:
            server.receive()
        if turn == LOCAL_STEPS * CLIENTS - 1:
            server.aggregate()
            print("round", n // 4, "loss", float(loss.asnumpy()))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
