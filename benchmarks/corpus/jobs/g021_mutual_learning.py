# truth: differs
# class: attribute
# head: imports_ops
# Deep mutual learning: both networks are in the list of cells, but of the two Adam optimizers only the first one is.


ms.set_seed(19)


class Student(nn.Cell):
    def __init__(self, hidden, prefix):
        super().__init__()
        self.fc1 = nn.Dense(8, hidden)
        self.norm = nn.LayerNorm((hidden,))
        self.fc2 = nn.Dense(hidden, 3)
        self.update_parameters_name(prefix)

    def construct(self, x):
        return self.fc2(ops.relu(self.norm(self.fc1(x))))


def kl(p_logits, q_logits):
    """KL(q || p), q is a constant"""
    q = ops.stop_gradient(ops.softmax(q_logits, 1))
    return (q * (ops.log(q + 1e-8) - ops.log_softmax(p_logits, 1))).sum(1).mean()


class Peer:
    def __init__(self, net, lr):
        self.net = net
        self.opt = nn.Adam(net.trainable_params(), learning_rate=lr)
        self.vg = ms.value_and_grad(self.loss, None, net.trainable_params())

    def loss(self, x, y, other_logits):
        logits = self.net(x)
        return ops.cross_entropy(logits, y) + kl(logits, other_logits)

    def step(self, x, y, other_logits):
        loss, grads = self.vg(x, y, other_logits)
        self.opt(grads)
        return loss


first, second = Peer(Student(8, "first."), 0.01), Peer(Student(6, "second."), 0.01)
r = np.random.RandomState(0)
X = r.randn(56, 8).astype(np.float32)
Y = X[:, :3].argmax(1).astype(np.int32)
rows = [(ms.Tensor(X[i : i + 7]), ms.Tensor(Y[i : i + 7])) for i in range(0, 56, 7)]
batches = ck.data.resumable(rows, epochs=3)

with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([first.net, second.net, first.opt], batches)
    manager.restore(state)
    for x, y in batches:
        manager.fence()
        a, b = first.net(x), second.net(x)
        first.step(x, y, b)
        second.step(x, y, a)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
