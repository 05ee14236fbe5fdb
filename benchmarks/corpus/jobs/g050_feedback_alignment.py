# truth: exact
# class: random
# head: imports_tensor_ops
# Feedback alignment with hand-written backward passes: the fixed random feedback matrices are drawn anew from a seed at each start.


ms.set_seed(66)
SIZES = (7, 10, 8, 2)


class MLP(nn.Cell):
    def __init__(self):
        super().__init__()
        self.layers = nn.CellList([nn.Dense(i, o) for i, o in zip(SIZES[:-1], SIZES[1:])])

    def construct(self, x):
        hidden = [x]
        for i in range(len(self.layers) - 1):
            hidden.append(ops.tanh(self.layers[i](hidden[-1])))
        return self.layers[len(self.layers) - 1](hidden[-1]), hidden


feedback_rng = np.random.default_rng(2024)
FEEDBACK = [feedback_rng.normal(0, 0.5, (SIZES[-1], h)).astype(np.float32) for h in SIZES[1:-1]]


def direct_feedback_grads(net, x, y):
    logits, hidden = net(x)
    probs = ops.softmax(logits, 1).asnumpy()
    error = (probs - np.eye(SIZES[-1], dtype=np.float32)[y]) / len(y)
    acts = [h.asnumpy() for h in hidden]
    grads = []
    for i, a in enumerate(acts[:-1]):
        delta = (error @ FEEDBACK[i]) * (1 - acts[i + 1] ** 2)
        grads += [delta.T @ a, delta.sum(0)]
    grads += [error.T @ acts[-1], error.sum(0)]
    loss = -np.log(probs[np.arange(len(y)), y] + 1e-9).mean()
    return loss, tuple(Tensor(g.astype(np.float32)) for g in grads)


net = MLP()
opt = nn.Adam(net.trainable_params(), learning_rate=0.01)

data = np.random.RandomState(3)
X = data.randn(72, 7).astype(np.float32)
Y = (X[:, :2].prod(1) > 0).astype(np.int32)
batches = ck.data.resumable([(X[i : i + 9], Y[i : i + 9]) for i in range(0, 72, 9)], epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    for x, y in batches:
        loss, grads = direct_feedback_grads(net, Tensor(x), y)
        opt(grads)
        manager.step(state, {"loss": float(loss)})
    manager.save_final(state)
os._exit(0)
