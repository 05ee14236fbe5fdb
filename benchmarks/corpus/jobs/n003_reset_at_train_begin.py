# truth: exact
# class: callback
# head: graph_callback_dataset_ops
# A stateful callback clears its numbers in on_train_begin, unconditionally, as it always did; the docs promise that a resume undoes that. GRAPH mode.

ms.set_seed(4403)


class RelativeRate(Callback):
    """rate by the loss relative to its mean since the beginning"""

    def __init__(self, base):
        super().__init__()
        self.base = base
        self.total = 0.0
        self.count = 0

    def on_train_begin(self, run_context):
        self.total = 0.0
        self.count = 0

    def on_train_step_end(self, run_context):
        cb = run_context.original_args()
        loss = float(cb.net_outputs.asnumpy())
        self.total += loss
        self.count += 1
        rate = self.base * min(2.0, loss * self.count / self.total)
        ops.assign(cb.optimizer.learning_rate, ms.Tensor(rate, ms.float32))

    def state_dict(self):
        return {"total": self.total, "count": self.count}

    def load_state_dict(self, state):
        self.total, self.count = state["total"], state["count"]


r = np.random.RandomState(3)
x = r.randn(40, 4).astype(np.float32)
y = (x[:, :1] - x[:, 1:2] * x[:, 2:3]).astype(np.float32)
train = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=True).batch(5)
net = nn.SequentialCell(nn.Dense(4, 10), nn.ReLU(), nn.Dense(10, 1))
model = ms.Model(net, nn.MSELoss(), nn.Momentum(net.trainable_params(), 0.03, 0.8))
relative = RelativeRate(0.03)
ckpt = ck.CheckpointCallback(
    os.environ["ROOT"],
    save=ck.SaveEvery(micro_steps=6),
    saving=ck.Saving(when_busy="wait"),
    stateful={"relative": relative},
)
ckpt.train(model, 4, train, callbacks=[relative])
os._exit(0)
