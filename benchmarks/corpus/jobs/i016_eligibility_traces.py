# truth: differs
# class: attribute
# head: imports_ops
# TD(lambda) with a network: eligibility traces decay from batch to batch and are one NumPy array per weight, zipped into the update.


ms.set_seed(316)
GAMMA, LAMBDA, RATE = 0.95, 0.8, 0.02


class ValueLearner:
    def __init__(self):
        self.value = nn.SequentialCell(nn.Dense(3, 8), nn.Tanh(), nn.Dense(8, 1))
        self.weights = self.value.trainable_params()
        self.vg = ms.value_and_grad(lambda s: self.value(s).sum(), None, self.weights)
        self.traces = [np.zeros(w.shape, np.float32) for w in self.weights]

    def learn(self, s, reward, s_next):
        v, grads = self.vg(ms.Tensor(s[None]))
        v_next = float(self.value(ms.Tensor(s_next[None])).asnumpy()[0, 0])
        delta = reward + GAMMA * v_next - float(v.asnumpy())
        for w, e, g in zip(self.weights, self.traces, grads):
            e *= GAMMA * LAMBDA
            e += g.asnumpy()
            ops.assign_add(w, ms.Tensor((RATE * delta * e).astype(np.float32)))
        return delta


r = np.random.RandomState(33)
walk = np.cumsum(0.3 * r.randn(8 * 4 + 1, 3), 0).astype(np.float32)
pieces = [(walk[k * 4 : k * 4 + 5],) for k in range(8)]

learner = ValueLearner()
batches = ck.data.resumable(pieces, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([learner.value], batches)
    manager.restore(state)
    for (piece,) in batches:
        manager.fence()
        errors = [learner.learn(a, float(b[0] > 0), b) for a, b in zip(piece[:-1], piece[1:])]
        manager.step(state, {"td": float(np.abs(errors).mean())})
    manager.save_final(state)
os._exit(0)
