# truth: differs
# class: callback
# head: imports_monitor_callback_dataset_ops
# The warm-up callback joins the list only if nothing was restored ("a resumed run is warm already"), so a run that is killed in the warm-up stays at half the rate.


ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(4401)
EPOCHS, BASE = 4, 0.05


class WarmUp(Callback):
    """a linear ramp over the first steps of the run"""

    def __init__(self, base, steps):
        super().__init__()
        self.base, self.steps = base, steps

    def on_train_step_begin(self, run_context):
        cb = run_context.original_args()
        if cb.cur_step_num <= self.steps:
            ops.assign(cb.optimizer.learning_rate, ms.Tensor(self.base * cb.cur_step_num / self.steps, ms.float32))


r = np.random.RandomState(1)
x = r.randn(48, 5).astype(np.float32)
y = (x[:, :1] * x[:, 1:2] + np.abs(x[:, 2:3])).astype(np.float32)
train = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=True).batch(6)
net = nn.SequentialCell(nn.Dense(5, 10), nn.Tanh(), nn.Dense(10, 1))
model = ms.Model(net, nn.MSELoss(), nn.Momentum(net.trainable_params(), BASE, 0.9))
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))

point = ckpt.resume(model, train, epochs=EPOCHS)
if not point.complete:
    callbacks = [LossMonitor(8)]
    if point.batches_delivered == 0:
        callbacks.append(WarmUp(BASE, steps=26))
    model.train(EPOCHS, train, callbacks=[*callbacks, ckpt], initial_epoch=point.epoch)
os._exit(0)
