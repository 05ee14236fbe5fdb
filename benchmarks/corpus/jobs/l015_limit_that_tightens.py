# truth: differs
# class: callback
# head: pynative_callback_dataset_ops
# `loss < limit` asks a Limit object (reflected __gt__), which moves towards whatever it is compared with; the callback itself has no state.

ms.set_seed(4115)


class Limit:
    __slots__ = ("_value",)

    def __init__(self, value):
        self._value = value

    def __gt__(self, loss):
        under = self._value > loss
        self._value = 0.9 * self._value + 0.1 * loss
        return under

    def __float__(self):
        return self._value


class Gate(Callback):
    __slots__ = ("limit",)

    def __init__(self, limit):
        super().__init__()
        self.limit = limit

    def on_train_step_end(self, run_context):
        cb = run_context.original_args()
        loss = float(cb.net_outputs.asnumpy())
        if loss < self.limit:
            print(f"{loss:.4f} is under the limit, which goes to {float(self.limit):.4f}")
        ops.assign(cb.optimizer.learning_rate, ms.Tensor(0.03 / (1 + float(self.limit)), ms.float32))


r = np.random.RandomState(15)
x = r.randn(48, 4).astype(np.float32)
y = (x**2).mean(1, keepdims=True).astype(np.float32)
train = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=False).batch(6)
net = nn.SequentialCell(nn.Dense(4, 8), nn.ReLU(), nn.Dense(8, 1))
model = ms.Model(net, nn.MSELoss(), nn.SGD(net.trainable_params(), 0.01, momentum=0.9))
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(model, 3, train, callbacks=[Gate(Limit(5.0))])
os._exit(0)
