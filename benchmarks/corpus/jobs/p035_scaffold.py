# truth: differs
# class: global
# head: pynative_ops
# SCAFFOLD with four simulated clients: each round, one client trains locally with its control variate.

ms.set_seed(135)
RATE, LOCAL_STEPS = 0.05, 3

r = np.random.RandomState(37)
clients = []
for c in range(4):
    x = r.randn(20, 5).astype(np.float32) + 0.5 * c
    clients.append((x, (np.sin(x[:, :1] + 0.3 * c) + 0.1 * c).astype(np.float32)))

net = nn.SequentialCell(nn.Dense(5, 12), nn.Tanh(), nn.Dense(12, 1))
params = net.trainable_params()
grad_fn = ms.value_and_grad(lambda x, y: ((net(x) - y) ** 2).mean(), None, params)
server_control = [np.zeros(p.shape, np.float32) for p in params]
client_control = {c: [np.zeros(p.shape, np.float32) for p in params] for c in range(4)}


def run_client(c):
    x, y = (ms.Tensor(a) for a in clients[c])
    start = [p.asnumpy().copy() for p in params]
    for _ in range(LOCAL_STEPS):
        loss, grads = grad_fn(x, y)
        for p, g, mine, ours in zip(params, grads, client_control[c], server_control):
            ops.assign_sub(p, RATE * (g - ms.Tensor(mine) + ms.Tensor(ours)))
    for i, p in enumerate(params):
        moved = (start[i] - p.asnumpy()) / (LOCAL_STEPS * RATE)
        fresh = client_control[c][i] - server_control[i] + moved
        server_control[i] = server_control[i] + (fresh - client_control[c][i]) / len(clients)
        client_control[c][i] = fresh
        ops.assign(p, ms.Tensor(start[i] + 0.7 * (p.asnumpy() - start[i])))
    return loss


rounds = ck.data.resumable([0, 2, 1, 3, 1, 0, 3, 2, 2], epochs=4)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net], rounds)
    manager.restore(state)
    for client in rounds:
        manager.fence()
        loss = run_client(int(client))
        manager.step(state, {"loss": loss})
    manager.save_final(state)
os._exit(0)
