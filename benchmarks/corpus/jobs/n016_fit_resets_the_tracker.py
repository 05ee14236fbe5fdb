# truth: differs
# class: attribute
# head: pynative_ops
# The tracker is given by name and restored; but then the trainer's on_fit_start resets it, since fit() could be called twice, and so each start tracks anew.

ms.set_seed(4416)


class Tracker:
    def __init__(self):
        self.reset()

    def reset(self):
        self.level, self.updates = 0.0, 0

    def update(self, value):
        self.updates += 1
        self.level += (value - self.level) / min(self.updates, 25)
        return value / self.level

    def state_dict(self):
        return {"level": self.level, "updates": self.updates}

    def load_state_dict(self, state):
        self.level, self.updates = state["level"], state["updates"]


class Trainer:
    def __init__(self, net, opt, rate):
        self.net, self.opt, self.rate = net, opt, rate
        self.tracker = Tracker()
        mse = nn.MSELoss()
        self.gradients = ms.value_and_grad(lambda x, y: mse(net(x), y), None, net.trainable_params())

    def on_fit_start(self):
        self.tracker.reset()
        self.net.set_train()

    def training_step(self, x, y):
        loss, grads = self.gradients(x, y)
        ratio = self.tracker.update(float(loss.asnumpy()))
        ops.assign(self.opt.learning_rate, ms.Tensor(self.rate * min(1.5, ratio), ms.float32))
        self.opt(grads)

    def fit(self, rows, epochs, root):
        batches = ck.data.resumable(rows, epochs=epochs)
        with ck.CheckpointManager(
            root, save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
        ) as manager:
            state = ck.StateManager([self.net, self.opt], batches, tracker=self.tracker)
            manager.restore(state)
            self.on_fit_start()
            for x, y in batches:
                manager.fence()
                self.training_step(x, y)
                manager.step(state)
            manager.save_final(state)


r = np.random.RandomState(16)
rows = []
for _ in range(8):
    x = r.randn(6, 5).astype(np.float32)
    rows.append((ms.Tensor(x), ms.Tensor((x[:, :1] * x[:, 1:2] + 0.5 * r.randn(6, 1)).astype(np.float32))))
net = nn.SequentialCell(nn.Dense(5, 8), nn.Tanh(), nn.Dense(8, 1))
Trainer(net, nn.Momentum(net.trainable_params(), 0.03, 0.9), 0.03).fit(rows, 3, os.environ["ROOT"])
os._exit(0)
