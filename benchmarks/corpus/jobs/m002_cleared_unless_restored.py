# truth: exact
# class: callback
# head: graph_callback_dataset_ops
# A stateful callback makes its window in on_train_begin, but only if there is none yet, so that a restored one stays; GRAPH mode, K = 3.

ms.set_seed(4302)


class MedianRate(Callback):
    def __init__(self, optimizer, base, size=5):
        super().__init__()
        self.optimizer, self.base, self.size = optimizer, base, size
        self.window = None
        self.highest = 0.0

    def on_train_begin(self, run_context):
        if self.window is None:
            self.window = []

    def on_train_step_end(self, run_context):
        self.window.append(float(run_context.original_args().net_outputs.asnumpy()))
        del self.window[: -self.size]
        rate = self.base * min(2.0, self.window[-1] / float(np.median(self.window)))
        self.highest = max(self.highest, rate)
        ops.assign(self.optimizer.learning_rate, ms.Tensor(rate, ms.float32))

    def on_train_end(self, run_context):
        print(f"the highest rate was {self.highest:.4f}")

    def state_dict(self):
        return {"window": None if self.window is None else list(self.window), "highest": self.highest}

    def load_state_dict(self, state):
        self.window = None if state["window"] is None else list(state["window"])
        self.highest = state["highest"]


r = np.random.RandomState(2)
x = r.randn(48, 5).astype(np.float32)
y = np.maximum(x[:, :1], x[:, 1:2] * 2).astype(np.float32)
train = ds.NumpySlicesDataset((x, y), ["x", "y"]).batch(6)
net = nn.SequentialCell(nn.Dense(5, 8), nn.Tanh(), nn.Dense(8, 1))
opt = nn.Momentum(net.trainable_params(), 0.05, 0.8)
cell = ck.AccumulationTrainCell(nn.WithLossCell(net, nn.MSELoss()), opt, accumulation_steps=3)
median = MedianRate(opt, 0.05)
ckpt = ck.CheckpointCallback(
    os.environ["ROOT"],
    save=ck.SaveEvery(micro_steps=5),
    saving=ck.Saving(when_busy="wait"),
    stateful={"median": median},
)
ckpt.train(ms.Model(cell), 3, train, callbacks=[median])
os._exit(0)
