# truth: differs
# class: callback
# head: pynative_callback_dataset_ops
# The callback is given in stateful= and stores mean and count of the epoch's losses, but not which epoch they are of; a start takes None for a new epoch.

ms.set_seed(4301)


class MeanOfEpoch(Callback):
    """the rate follows the loss, relative to the mean loss of this epoch so far"""

    def __init__(self, base):
        super().__init__()
        self.base = base
        self.epoch = None
        self.mean, self.count = 0.0, 0

    def on_train_step_end(self, run_context):
        cb = run_context.original_args()
        if self.epoch != cb.cur_epoch_num:
            self.epoch = cb.cur_epoch_num
            self.mean, self.count = 0.0, 0
        loss = float(cb.net_outputs.asnumpy())
        self.count += 1
        self.mean += (loss - self.mean) / self.count
        rate = self.base * min(2.0, loss / self.mean)
        ops.assign(cb.optimizer.learning_rate, ms.Tensor(rate, ms.float32))

    def state_dict(self):
        return {"mean": self.mean, "count": self.count}

    def load_state_dict(self, state):
        self.mean, self.count = state["mean"], state["count"]


r = np.random.RandomState(1)
x = r.randn(72, 5).astype(np.float32)
y = (x[:, :1] * x[:, 1:2] + np.abs(x[:, 2:3])).astype(np.float32)
train = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=True).batch(6)
net = nn.SequentialCell(nn.Dense(5, 8), nn.Tanh(), nn.Dense(8, 1))
model = ms.Model(net, nn.MSELoss(), nn.Momentum(net.trainable_params(), 0.03, 0.9))
mean = MeanOfEpoch(0.03)
ckpt = ck.CheckpointCallback(
    os.environ["ROOT"],
    save=ck.SaveEvery(micro_steps=5),
    saving=ck.Saving(when_busy="wait"),
    stateful={"mean_of_epoch": mean},
)
ckpt.train(model, 2, train, callbacks=[mean])
os._exit(0)
