# truth: differs
# class: attribute
# head: regression_6_rows

net = nn.SequentialCell(nn.Dense(6, 12), nn.Tanh(), nn.Dense(12, 1))


class LightModule:
    def __init__(self, net):
        self.net = net
        self.automatic_optimization = True
        self.ema_loss = None
        self.logged = {}

    def log(self, name, value):
        self.logged[name] = float(value)

    def weight(self):
        return 1.0 if self.ema_loss is None else float(np.clip(self.ema_loss, 0.2, 2.0))

    def loss(self, x, y):
        return ((self.net(x) - y) ** 2).mean() * self.weight()

    def training_step_end(self, loss):
        raw = float(loss) / self.weight()
        self.ema_loss = raw if self.ema_loss is None else 0.9 * self.ema_loss + 0.1 * raw
        self.log("train/loss", raw)

    def configure_optimizers(self):
        return nn.Momentum(self.net.trainable_params(), 0.03, 0.9)


class Trainer:
    def __init__(self, max_epochs, root):
        self.max_epochs, self.root = max_epochs, root

    def fit(self, module, data):
        optimizer = module.configure_optimizers()
        backward = ms.value_and_grad(module.loss, None, optimizer.parameters)
        batches = ck.data.resumable(data, epochs=self.max_epochs)
        with ck.CheckpointManager(self.root, **SAVE) as manager:
            state = ck.StateManager([module.net, optimizer], batches)
            manager.restore(state)
            for x, y in batches:
                loss, grads = backward(x, y)
                optimizer(grads)
                module.training_step_end(loss)
                manager.step(state)
            manager.save_final(state)


Trainer(3, ROOT).fit(LightModule(net), loader)
os._exit(0)
