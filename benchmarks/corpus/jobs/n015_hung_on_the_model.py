# truth: differs
# class: callback
# head: graph_callback_dataset_ops
# The callback has nothing of its own: it hangs the running loss on the ms.Model object, where "everybody can find it", and sets the rate from it. GRAPH mode.

ms.set_seed(4415)


class Journal(Callback):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def on_train_step_end(self, run_context):
        loss = float(run_context.original_args().net_outputs.asnumpy())
        level = getattr(self.model, "running_loss", loss)
        self.model.running_loss = 0.9 * level + 0.1 * loss


class Proportional(Callback):
    def __init__(self, model, base):
        super().__init__()
        self.model, self.base = model, base

    def on_train_step_end(self, run_context):
        cb = run_context.original_args()
        ratio = float(cb.net_outputs.asnumpy()) / self.model.running_loss
        ops.assign(cb.optimizer.learning_rate, ms.Tensor(self.base * min(2.0, ratio), ms.float32))


r = np.random.RandomState(15)
x = r.randn(48, 6).astype(np.float32)
y = (x[:, :1] ** 2 - x[:, 1:2] + 0.2 * r.randn(48, 1)).astype(np.float32)
train = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=True).batch(6)
net = nn.SequentialCell(nn.Dense(6, 10), nn.Tanh(), nn.Dense(10, 1))
model = ms.Model(net, nn.MSELoss(), nn.Momentum(net.trainable_params(), 0.03, 0.9))
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(model, 3, train, callbacks=[Journal(model), Proportional(model, 0.03)])
os._exit(0)
