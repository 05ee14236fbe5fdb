# truth: exact
# class: callback
# head: pynative_callback_dataset_ops
# A callback averages the weights, swaps the average in at the end of an epoch to evaluate, and swaps back; if the error has not improved, it lowers the rate. All that it keeps is in its state_dict.

ms.set_seed(3545)


class AveragedEvaluation(Callback):
    def __init__(self, net, x, y, decay=0.9):
        super().__init__()
        self.net, self.x, self.y, self.decay = net, x, y, decay
        self.average = [p.asnumpy().copy() for p in net.trainable_params()]
        self.best = float("inf")

    def put(self, values):
        for p, value in zip(self.net.trainable_params(), values):
            ops.assign(p, ms.Tensor(value))

    def on_train_step_end(self, run_context):
        keep = np.float32(self.decay)
        self.average = [keep * a + (1 - keep) * p.asnumpy() for a, p in zip(self.average, self.net.trainable_params())]

    def on_train_epoch_end(self, run_context):
        trained = [p.asnumpy().copy() for p in self.net.trainable_params()]
        self.put(self.average)
        error = float(((self.net(self.x) - self.y) ** 2).mean().asnumpy())
        self.put(trained)
        print(f"error of the average: {error:.4f}")
        if error > 0.98 * self.best:
            rate = run_context.original_args().optimizer.learning_rate
            ops.assign(rate, 0.5 * rate)
        self.best = min(self.best, error)

    def state_dict(self):
        return {"best": self.best, "average": [a.copy() for a in self.average]}

    def load_state_dict(self, state):
        self.best = state["best"]
        self.average = [np.array(a) for a in state["average"]]


r = np.random.RandomState(45)
x = r.randn(90, 5).astype(np.float32)
y = (np.sin(2 * x[:, :1]) + x[:, 1:2] * x[:, 2:3] + 0.3 * r.randn(90, 1)).astype(np.float32)
train = ds.NumpySlicesDataset((x[:48], y[:48]), ["x", "y"], shuffle=True).batch(6)
net = nn.SequentialCell(nn.Dense(5, 12), nn.Tanh(), nn.Dense(12, 1))
model = ms.Model(net, nn.MSELoss(), nn.Momentum(net.trainable_params(), 0.05, 0.9))
evaluation = AveragedEvaluation(net, ms.Tensor(x[48:]), ms.Tensor(y[48:]))

ckpt = ck.CheckpointCallback(
    os.environ["ROOT"],
    save=ck.SaveEvery(micro_steps=5),
    saving=ck.Saving(when_busy="wait"),
    stateful={"evaluation": evaluation},
)
ckpt.train(model, 5, train, callbacks=[evaluation])
os._exit(0)
