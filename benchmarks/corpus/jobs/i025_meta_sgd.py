# truth: differs
# class: global
# head: imports_ops
# Meta-SGD on sine tasks: the inner learning rates are learned too, as plain NumPy arrays in the learner (the initial weights are stored).


ms.set_seed(325)


class MetaSGD:
    def __init__(self, net, outer=0.1, rate_of_rates=0.02):
        self.net, self.outer, self.rate_of_rates = net, outer, rate_of_rates
        self.theta = net.trainable_params()
        self.log_alpha = {p.name: np.full(p.shape, -3.0, np.float32) for p in self.theta}
        mse = nn.MSELoss()
        self.vg = ms.value_and_grad(lambda x, y: mse(net(x), y), None, self.theta)

    def meta_step(self, support, query):
        start = [p.asnumpy().copy() for p in self.theta]
        _, inner = self.vg(*support)
        inner = [g.asnumpy() for g in inner]
        for p, w, g in zip(self.theta, start, inner):
            ops.assign(p, ms.Tensor((w - np.exp(self.log_alpha[p.name]) * g).astype(np.float32)))
        loss, outer = self.vg(*query)
        for p, w, g_in, g_out in zip(self.theta, start, inner, outer):
            g_out = g_out.asnumpy()
            ops.assign(p, ms.Tensor((w - self.outer * g_out).astype(np.float32)))
            # d loss / d log alpha = -g_out * g_in * alpha (first order)
            alpha = np.exp(self.log_alpha[p.name])
            self.log_alpha[p.name] += np.clip(self.rate_of_rates * 50 * g_out * g_in * alpha, -0.3, 0.3)
        return loss


def sine_task(seed):
    r = np.random.RandomState(seed)
    amplitude, phase = r.uniform(0.5, 2), r.uniform(0, np.pi)
    x = r.uniform(-3, 3, (2, 8, 1)).astype(np.float32)
    y = (amplitude * np.sin(x + phase)).astype(np.float32)
    return x, y


learner = MetaSGD(nn.SequentialCell(nn.Dense(1, 10), nn.Tanh(), nn.Dense(10, 1)))
tasks = ck.data.resumable([sine_task(k) for k in range(8)], epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([learner.net], tasks)
    manager.restore(state)
    for x, y in tasks:
        (xs, xq), (ys, yq) = map(lambda a: [ms.Tensor(v) for v in a], (x, y))
        manager.fence()
        learner.meta_step((xs, ys), (xq, yq))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
