# truth: differs
# class: callback
# head: pynative_callback_dataset_ops
# A class decorator adds to any callback a memory of the last losses and a property `trend` made from it; the callback itself has no state.

ms.set_seed(4315)


def with_trend(window):
    """a class decorator: instances get .trend, the relative fall of the loss over the window"""

    def decorate(cls):
        step_end, slot = cls.on_train_step_end, f"_{cls.__name__.lower()}_losses"

        def on_train_step_end(self, run_context):
            losses = self.__dict__.setdefault(slot, [])
            losses.append(float(run_context.original_args().net_outputs.asnumpy()))
            del losses[:-window]
            return step_end(self, run_context)

        def trend(self):
            losses = getattr(self, slot)
            return (losses[0] - losses[-1]) / losses[0]

        cls.on_train_step_end = on_train_step_end
        cls.trend = property(trend)
        return cls

    return decorate


@with_trend(window=8)
class TrendRate(Callback):
    def __init__(self, base):
        super().__init__()
        self.base = base

    def on_train_step_end(self, run_context):
        rate = self.base * float(np.exp(np.clip(self.trend, -1, 1)))
        ops.assign(run_context.original_args().optimizer.learning_rate, ms.Tensor(rate, ms.float32))


r = np.random.RandomState(15)
x = r.randn(48, 5).astype(np.float32)
y = (x[:, :1] * x[:, 1:2] + x[:, 4:]).astype(np.float32)
train = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=False).batch(6)
net = nn.SequentialCell(nn.Dense(5, 8), nn.Tanh(), nn.Dense(8, 1))
model = ms.Model(net, nn.MSELoss(), nn.Momentum(net.trainable_params(), 0.02, 0.9))
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(model, 3, train, callbacks=[TrendRate(0.02)])
os._exit(0)
