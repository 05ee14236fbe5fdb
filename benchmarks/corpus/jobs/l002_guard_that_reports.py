# truth: exact
# class: closure
# head: pynative_callback_dataset_ops
# The same kind of factory with a window in its closure; whether the window is full decides only about a printed line, the rate follows the step.

ms.set_seed(4102)


class Window(list):
    size = 6

    def __bool__(self):
        return len(self) == self.size

    def push(self, value):
        self.append(value)
        del self[: -self.size]


def loss_guard(optimizer, base):
    recent, alarms = Window(), 0

    class LossGuard(Callback):
        def on_train_step_end(self, run_context):
            nonlocal alarms
            cb = run_context.original_args()
            recent.push(float(cb.net_outputs.asnumpy()))
            if recent and recent[-1] > 1.2 * min(recent):
                alarms += 1
                print(f"step {cb.cur_step_num}: {recent[-1]:.4f} is above the window (alarm {alarms})")
            ops.assign(optimizer.learning_rate, ms.Tensor(base / (1 + cb.cur_step_num / 10), ms.float32))

    return LossGuard()


r = np.random.RandomState(2)
x = r.randn(48, 5).astype(np.float32)
y = (x[:, :1] * x[:, 1:2] + 0.3 * x[:, 2:3]).astype(np.float32)
train = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=False).batch(6)
net = nn.SequentialCell(nn.Dense(5, 8), nn.Tanh(), nn.Dense(8, 1))
opt = nn.Momentum(net.trainable_params(), 0.04, 0.9)
model = ms.Model(net, nn.MSELoss(), opt)
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(model, 3, train, callbacks=[loss_guard(opt, 0.04)])
os._exit(0)
