# truth: differs
# class: attribute
# head: imports
# A trainer with plugins; GradientCentering subtracts a running mean of each gradient, which it keeps by name of the weight.


ms.set_seed(72)


class Plugin:
    def before_batch(self, trainer, batch):
        return batch

    def after_backward(self, trainer, grads):
        return grads


class Scale(Plugin):
    def __init__(self, factor):
        self.factor = factor

    def before_batch(self, trainer, batch):
        x, y = batch
        return x * self.factor, y


class GradientCentering(Plugin):
    def __init__(self, decay=0.9, strength=0.5):
        self.decay, self.strength = decay, strength
        self.means = {}

    def after_backward(self, trainer, grads):
        out = []
        for p, g in zip(trainer.optimizer.parameters, grads):
            mean = self.means.get(p.name, 0.0)
            out.append(g - self.strength * mean if p.name in self.means else g)
            self.means[p.name] = self.decay * mean + (1 - self.decay) * g
        return tuple(out)


class Trainer:
    def __init__(self, net, loss_fn, optimizer, plugins):
        self.net, self.optimizer, self.plugins = net, optimizer, plugins
        self.vg = ms.value_and_grad(lambda x, y: loss_fn(net(x), y), None, optimizer.parameters)

    def fit(self, rows, epochs):
        batches = ck.data.resumable(rows, epochs=epochs)
        with ck.CheckpointManager(
            os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
        ) as manager:
            state = ck.StateManager([self.net, self.optimizer], batches)
            manager.restore(state)
            for batch in batches:
                for plugin in self.plugins:
                    batch = plugin.before_batch(self, batch)
                loss, grads = self.vg(*batch)
                for plugin in self.plugins:
                    grads = plugin.after_backward(self, grads)
                self.optimizer(grads)
                manager.step(state)
            manager.save_final(state)


r = np.random.RandomState(1)
rows = []
for _ in range(8):
    x = r.randn(6, 6).astype(np.float32)
    rows.append((ms.Tensor(x), ms.Tensor(np.cos(x[:, :2]).astype(np.float32))))
net = nn.SequentialCell(nn.Dense(6, 8), nn.Tanh(), nn.Dense(8, 2))
opt = nn.Adam(net.trainable_params(), learning_rate=0.01)
Trainer(net, nn.MSELoss(), opt, [Scale(0.5), GradientCentering()]).fit(rows, epochs=3)
os._exit(0)
