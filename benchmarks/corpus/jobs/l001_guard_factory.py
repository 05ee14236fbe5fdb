# truth: differs
# class: callback
# head: pynative_callback_dataset_ops
# A factory builds the callback; the window of recent losses is in its closure, and a Calm object whose __bool__ looks at the window opens the throttle.

ms.set_seed(4101)


def loss_guard(optimizer, base, window=6):
    recent = []

    class Calm:
        """true once there are enough losses to say anything"""

        def __bool__(self):
            return len(recent) >= window

        def spread(self):
            return (max(recent) - min(recent)) / max(recent)

    calm = Calm()

    class LossGuard(Callback):
        def on_train_step_end(self, run_context):
            recent.append(float(run_context.original_args().net_outputs.asnumpy()))
            del recent[:-window]
            rate = base / (1 + calm.spread()) if calm else base / 4
            ops.assign(optimizer.learning_rate, ms.Tensor(rate, ms.float32))

    return LossGuard()


r = np.random.RandomState(1)
x = r.randn(48, 5).astype(np.float32)
y = (x[:, :1] * x[:, 1:2] + 0.3 * x[:, 2:3]).astype(np.float32)
train = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=False).batch(6)
net = nn.SequentialCell(nn.Dense(5, 8), nn.Tanh(), nn.Dense(8, 1))
opt = nn.Momentum(net.trainable_params(), 0.02, 0.9)
model = ms.Model(net, nn.MSELoss(), opt)
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(model, 3, train, callbacks=[loss_guard(opt, 0.04)])
os._exit(0)
