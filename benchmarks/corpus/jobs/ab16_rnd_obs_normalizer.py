# truth: differs
# class: attribute
# head: saving_pynative_dataset_parameter

rng0 = np.random.default_rng(3)
S = (3 + 2 * rng0.normal(size=(100, 4))).astype(np.float32)


class RunningMeanStd:
    def __init__(self, shape):
        self.mean, self.var, self.count = np.zeros(shape), np.ones(shape), 1e-4

    def __iadd__(self, batch):
        m, v, n = batch.mean(0), batch.var(0), len(batch)
        delta, total = m - self.mean, self.count + n
        self.var = (self.var * self.count + v * n + delta**2 * self.count * n / total) / total
        self.mean, self.count = self.mean + delta * n / total, total
        return self


class NormalizeObservation:
    def __init__(self, rms):
        self.rms = rms

    def observation(self, obs):
        self.rms += obs
        return ((obs - self.rms.mean) / np.sqrt(self.rms.var + 1e-8)).clip(-5, 5).astype(np.float32)


predictor = nn.SequentialCell(nn.Dense(4, 8), nn.ReLU(), nn.Dense(8, 3))
target = nn.Dense(4, 3)
predictor.update_parameters_name("p.")
target.update_parameters_name("t.")
opt = nn.Adam(predictor.trainable_params(), 0.01)
normalize = NormalizeObservation(RunningMeanStd(4))
grad_fn = ms.value_and_grad(lambda s: ((predictor(s) - ops.stop_gradient(target(s))) ** 2).mean(), None, opt.parameters)
stream = ck.data.resumable([S[i : i + 4] for i in range(0, 100, 4)], epochs=1)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([predictor, target, opt], stream)
    manager.restore(state)
    for s in stream:
        bonus, grads = grad_fn(Tensor(normalize.observation(s)))
        opt(grads)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
