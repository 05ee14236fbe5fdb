# truth: differs
# class: attribute
# head: graph_callback_dataset_ops
# Model.fit; the rate is halved whenever an evaluation is not clearly better than the best one so far.

ms.set_seed(124)


class HalveOnSlowProgress(Callback):
    def __init__(self, optimizer, wanted=0.5):
        super().__init__()
        self.optimizer, self.wanted = optimizer, wanted
        self.best = float("inf")

    def on_eval_end(self, run_context):
        loss = run_context.original_args().eval_results["mse"]
        if loss > self.best * self.wanted:
            rate = float(self.optimizer.learning_rate.asnumpy()) / 2
            ops.assign(self.optimizer.learning_rate, ms.Tensor(rate, ms.float32))
            print(f"evaluation {loss:.4f}, best {self.best:.4f}: rate {rate}")
        self.best = min(self.best, loss)


r = np.random.RandomState(24)
x = r.randn(96, 6).astype(np.float32)
y = (x[:, :1] * x[:, 1:2] + 0.5 * x[:, 2:3]).astype(np.float32)
train = ds.NumpySlicesDataset((x[:64], y[:64]), ["x", "y"], shuffle=True).batch(8)
valid = ds.NumpySlicesDataset((x[64:], y[64:]), ["x", "y"], shuffle=False).batch(16)
net = nn.SequentialCell(nn.Dense(6, 16), nn.ReLU(), nn.Dense(16, 1))
optimizer = nn.Momentum(net.trainable_params(), 0.05, 0.8)
model = ms.Model(net, nn.MSELoss(), optimizer, metrics={"mse": ms.train.MSE()})

ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.fit(model, 5, train, valid, callbacks=[HalveOnSlowProgress(optimizer)])
os._exit(0)
