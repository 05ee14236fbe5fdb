# truth: exact
# class: callback
# head: graph_callback_dataset_ops
# The callback keeps its running loss in a Parameter that it inserts into the network (insert_param_to_cell) before training; GRAPH mode.

ms.set_seed(4310)


class PullDown(Callback):
    """weights are pulled to zero, more so while the loss is above its running mean"""

    def __init__(self, network, amount):
        super().__init__()
        running = ms.Parameter(ms.Tensor([0.0, 0.0], ms.float32), name="running_loss", requires_grad=False)
        network.insert_param_to_cell("running_loss", running)
        self.network, self.amount = network, amount

    def on_train_step_end(self, run_context):
        cb = run_context.original_args()
        loss = float(cb.net_outputs.asnumpy())
        total, weight = (float(v) for v in self.network.running_loss.asnumpy())
        total, weight = 0.85 * total + loss, 0.85 * weight + 1
        ops.assign(self.network.running_loss, ms.Tensor([total, weight], ms.float32))
        pull = self.amount * min(2.0, loss * weight / total)
        for p in cb.optimizer.parameters:
            ops.assign(p, p * (1 - pull))


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.body = nn.Dense(5, 10, activation="tanh")
        self.head = nn.Dense(10, 1)

    def construct(self, x):
        return self.head(self.body(x))


r = np.random.RandomState(10)
x = r.randn(48, 5).astype(np.float32)
y = (x[:, :1] * np.sign(x[:, 1:2])).astype(np.float32)
train = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=True).batch(6)
net = Net()
pull = PullDown(net, 0.01)
model = ms.Model(net, nn.MSELoss(), nn.Momentum(net.trainable_params(), 0.05, 0.9))
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(model, 3, train, callbacks=[pull])
os._exit(0)
