# truth: differs
# class: callback
# head: imports_monitor_callback_dataset_ops
# A callback compares a fast and a slow average of the loss and sets the rate by their ratio; both are attributes that nobody stores. GRAPH mode.


ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(3539)


class TrendRate(Callback):
    """a falling loss gets a larger rate, a rising one a smaller"""

    def __init__(self, base):
        super().__init__()
        self.base = base
        self.fast = self.slow = None

    def on_train_step_end(self, run_context):
        cb = run_context.original_args()
        loss = float(cb.net_outputs.asnumpy())
        if self.fast is None:
            self.fast = self.slow = loss
        self.fast += 0.4 * (loss - self.fast)
        self.slow += 0.05 * (loss - self.slow)
        rate = self.base * min(max(self.slow / self.fast, 0.3), 3.0)
        ops.assign(cb.optimizer.learning_rate, ms.Tensor(rate, ms.float32))


r = np.random.RandomState(39)
x = r.randn(60, 5).astype(np.float32)
y = (x[:, :1] - 2 * x[:, 1:2] + x[:, 2:3] * x[:, 3:4]).astype(np.float32)
train = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=True).batch(6)
net = nn.SequentialCell(nn.Dense(5, 10), nn.ReLU(), nn.Dense(10, 1))
model = ms.Model(net, nn.MSELoss(), nn.SGD(net.trainable_params(), 0.02))

ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(model, 4, train, callbacks=[LossMonitor(10), TrendRate(0.02)])
os._exit(0)
