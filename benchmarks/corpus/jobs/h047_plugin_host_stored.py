# truth: exact
# class: attribute
# head: imports
# A host collects the state_dict of all its plugins (a loss-driven factor, an average of inputs) into one, and is given by name.


ms.set_seed(95)


class InputMean:
    name = "input_mean"

    def __init__(self, width):
        self.mean = np.zeros(width, np.float32)

    def on_batch(self, x):
        self.mean = (0.9 * self.mean + 0.1 * x.mean(0)).astype(np.float32)
        return x - self.mean

    def on_loss(self, loss):
        pass

    def state_dict(self):
        return {"mean": self.mean}

    def load_state_dict(self, state):
        self.mean = np.array(state["mean"], np.float32)


class LossFactor:
    name = "loss_factor"

    def __init__(self):
        self.factor, self.last = 1.0, 0.0

    def on_batch(self, x):
        return x * self.factor

    def on_loss(self, loss):
        self.factor *= 1.02 if loss < self.last else 0.98
        self.last = loss

    def state_dict(self):
        return {"factor": self.factor, "last": self.last}

    def load_state_dict(self, state):
        self.factor, self.last = state["factor"], state["last"]


class Host:
    def __init__(self, *plugins):
        self.plugins = plugins

    def batch(self, x):
        for plugin in self.plugins:
            x = plugin.on_batch(x)
        return x.astype(np.float32)

    def loss(self, value):
        for plugin in self.plugins:
            plugin.on_loss(value)

    def state_dict(self):
        return {plugin.name: plugin.state_dict() for plugin in self.plugins}

    def load_state_dict(self, state):
        for plugin in self.plugins:
            plugin.load_state_dict(state[plugin.name])


r = np.random.RandomState(77)
X = (r.randn(8, 6, 7) + 0.5).astype(np.float32)
Y = (X[..., :1] * X[..., 1:2]).astype(np.float32)
net = nn.SequentialCell(nn.Dense(7, 7), nn.Tanh(), nn.Dense(7, 1))
train = nn.TrainOneStepCell(nn.WithLossCell(net, nn.MSELoss()), nn.Adam(net.trainable_params(), 0.01)).set_train()
host = Host(InputMean(7), LossFactor())
batches = ck.data.resumable(list(zip(X, Y)), epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(train, batches, plugins=host)
    manager.restore(state)
    for x, y in batches:
        host.loss(float(train(ms.Tensor(host.batch(x)), ms.Tensor(y)).asnumpy()))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
