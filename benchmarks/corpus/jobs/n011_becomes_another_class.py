# truth: differs
# class: attribute
# head: pynative_callback_dataset_ops
# The callback changes its class from phase to phase (self.__class__ = Cruise), as the cookbook does for state machines; each start begins in the first class.

ms.set_seed(4411)


class Phase(Callback):
    base = 0.05

    def on_train_step_end(self, run_context):
        cb = run_context.original_args()
        factor = self.react(float(cb.net_outputs.asnumpy()), cb.cur_step_num)
        ops.assign(cb.optimizer.learning_rate, ms.Tensor(self.base * factor, ms.float32))

    def enter(self, phase, step):
        print(f"step {step}: {type(self).__name__} -> {phase.__name__}")
        self.__class__ = phase


class Land(Phase):
    def react(self, loss, step):
        return 0.3 / (1 + loss)


class Cruise(Phase):
    def react(self, loss, step):
        if loss > 6.0:
            self.enter(Land, step)
        return min(1.0, 0.2 + loss)


class Climb(Phase):
    def react(self, loss, step):
        if loss < 1.5 and step > 4:
            self.enter(Cruise, step)
        return 0.1


r = np.random.RandomState(11)
x = r.randn(48, 5).astype(np.float32)
y = (x[:, :1] + 0.5 * x[:, 1:2] * x[:, 2:3]).astype(np.float32)
train = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=True).batch(6)
net = nn.SequentialCell(nn.Dense(5, 8), nn.Tanh(), nn.Dense(8, 1))
model = ms.Model(net, nn.MSELoss(), nn.Momentum(net.trainable_params(), 0.05, 0.8))
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(model, 4, train, callbacks=[Climb()])
os._exit(0)
