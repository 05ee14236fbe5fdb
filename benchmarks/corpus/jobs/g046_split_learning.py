# truth: exact
# class: outside
# head: imports_ops
# Split learning: client and server halves exchange activations and their gradient; each has its own optimizer, both are stored.


ms.set_seed(26)


class Client(nn.Cell):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(2, 4, 3, pad_mode="same", has_bias=True)

    def construct(self, x):
        return ops.relu(self.conv(x)).mean(2)


class ServerLoss(nn.Cell):
    def __init__(self):
        super().__init__()
        self.fc = nn.Dense(4, 3)

    def construct(self, smashed, y):
        return ops.cross_entropy(self.fc(smashed), y)


client, server = Client(), ServerLoss()
client.update_parameters_name("client.")
server.update_parameters_name("server.")
client_opt = nn.Momentum(client.trainable_params(), 0.1, 0.9)
server_opt = nn.Adam(server.trainable_params(), learning_rate=0.02)

# what the server runs: gradient of the smashed data and of its own weights
server_vg = ms.value_and_grad(server, 0, server.trainable_params())


def client_surrogate(x, upstream):
    # its gradient is the vector-Jacobian product
    return (client(x) * upstream).sum()


client_grad = ms.grad(client_surrogate, None, client.trainable_params())


def round_trip(x, y):
    smashed = ops.stop_gradient(client(x))
    loss, (upstream, server_grads) = server_vg(smashed, y)
    server_opt(server_grads)
    client_opt(client_grad(x, upstream))
    return loss


r = np.random.RandomState(3)
signals = r.randn(63, 2, 9).astype(np.float32)
labels = signals.mean(2)[:, 0]
labels = np.digitize(labels, [-0.15, 0.15]).astype(np.int32)
loader = [(ms.Tensor(signals[i : i + 7]), ms.Tensor(labels[i : i + 7])) for i in range(0, 63, 7)]
batches = ck.data.resumable(loader, epochs=3)

with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([client, client_opt, server], batches, server_opt=server_opt)
    manager.restore(state)
    for x, y in batches:
        manager.fence()
        loss = round_trip(x, y)
        manager.step(state, {"loss": loss})
    manager.save_final(state)
os._exit(0)
