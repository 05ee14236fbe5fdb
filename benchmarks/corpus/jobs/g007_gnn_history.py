# truth: differs
# class: attribute
# head: imports_ops
# GNNAutoScale-like training: embeddings of neighbours outside of the batch come from a historical table that is pushed after each step.


ms.set_seed(12)
N, F, H = 32, 5, 6
r = np.random.RandomState(8)
feat = r.randn(N, F).astype(np.float32)
A = (r.rand(N, N) < 0.2).astype(np.float32)
A = A / np.maximum(A.sum(1, keepdims=True), 1)
target = np.tanh(A @ feat[:, :1] + feat[:, 1:2]).astype(np.float32)


class History:
    def __init__(self, n, dim):
        self.emb = np.zeros((n, dim), np.float32)

    def pull(self, rows):
        return (A[rows] @ self.emb).astype(np.float32)

    def push(self, rows, values):
        self.emb[rows] = values


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.l1 = nn.Dense(F, H)
        self.l2 = nn.Dense(2 * H, 1)

    def construct(self, x, neigh):
        h = ops.relu(self.l1(x))
        return self.l2(ops.concat((h, neigh), 1)), h


def run(root):
    net = Net()
    opt = nn.Adam(net.trainable_params(), learning_rate=0.02)
    history = History(N, H)

    def forward(x, neigh, y):
        out, h = net(x, neigh)
        return ((out - y) ** 2).mean(), h

    vg = ms.value_and_grad(forward, None, opt.parameters, has_aux=True)
    batches = ck.data.resumable([(np.arange(i, N, 8),) for i in range(8)], epochs=3)
    with ck.CheckpointManager(root, save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")) as manager:
        state = ck.StateManager([net, opt], batches)
        manager.restore(state)
        for (rows,) in batches:
            (loss, h), grads = vg(ms.Tensor(feat[rows]), ms.Tensor(history.pull(rows)), ms.Tensor(target[rows]))
            opt(grads)
            history.push(rows, h.asnumpy())
            manager.step(state)
        manager.save_final(state)
    return float(loss.asnumpy())


print(run(os.environ["ROOT"]))
os._exit(0)
