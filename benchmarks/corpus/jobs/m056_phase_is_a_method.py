# truth: differs
# class: attribute
# head: pynative_ops
# The pilot's present phase is one of its methods, bound to an attribute; its state_dict has all its numbers, but methods cannot be stored, so each start warms up.

ms.set_seed(4356)


class Pilot:
    """gives the rate for the next update; warm-up, then cruise relative to the loss at its begin, then descent"""

    def __init__(self, base):
        self.base = base
        self.phase = self.warm_up
        self.steps_in_phase = 0
        self.reference = 1.0

    def __call__(self, loss):
        self.steps_in_phase += 1
        return self.phase(loss)

    def enter(self, phase, loss):
        self.phase, self.steps_in_phase, self.reference = phase, 0, loss

    def warm_up(self, loss):
        if self.steps_in_phase == 5:
            self.enter(self.cruise, loss)
        return self.base * 0.2 * max(1, self.steps_in_phase)

    def cruise(self, loss):
        if self.steps_in_phase > 8 and loss < 0.9 * self.reference:
            self.enter(self.descend, loss)
        return self.base * min(1.5, (loss + self.reference) / (2 * self.reference))

    def descend(self, loss):
        return self.base / (1 + 0.3 * self.steps_in_phase)

    def state_dict(self):
        return {name: value for name, value in vars(self).items() if not callable(value)}

    def load_state_dict(self, state):
        vars(self).update(state)


r = np.random.RandomState(56)
rows = []
for _ in range(8):
    x = r.randn(8, 4).astype(np.float32)
    rows.append((ms.Tensor(x), ms.Tensor((x[:, :1] * x[:, 1:2] + np.abs(x[:, 2:3])).astype(np.float32))))
net = nn.SequentialCell(nn.Dense(4, 8), nn.Tanh(), nn.Dense(8, 1))
mse = nn.MSELoss()
opt = nn.Momentum(net.trainable_params(), 0.01, 0.9)
gradients = ms.value_and_grad(lambda x, y: mse(net(x), y), None, net.trainable_params())
pilot = Pilot(0.05)

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches, pilot=pilot)
    manager.restore(state)
    for x, y in batches:
        loss, grads = gradients(x, y)
        manager.fence()
        ops.assign(opt.learning_rate, ms.Tensor(pilot(float(loss.asnumpy())), ms.float32))
        opt(grads)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
