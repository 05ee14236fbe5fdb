# truth: differs
# class: attribute
# head: pynative_ops
# From the tenth batch on there is a teacher, a copy of the network that follows it slowly; it is made when it is first needed, long after the StateManager.

ms.set_seed(4428)


def make_net():
    return nn.SequentialCell(nn.Dense(5, 10), nn.Tanh(), nn.Dense(10, 1))


class SelfEnsemble:
    """supervised at first; later also consistent with a teacher"""

    def __init__(self, net, opt, begins, decay):
        self.net, self.opt = net, opt
        self.begins, self.decay = begins, decay
        self.teacher = None
        self.gradients = ms.value_and_grad(self.forward, None, net.trainable_params())

    def forward(self, x, y, soft, weight):
        out = self.net(x)
        return ((out - y) ** 2).mean() + weight * ((out - soft) ** 2).mean()

    def step(self, number, x, y):
        if self.teacher is None and number >= self.begins:
            self.teacher = make_net()
            self.follow(0.0)
        soft, weight = (y, 0.0) if self.teacher is None else (self.teacher(x), 0.5)
        loss, grads = self.gradients(x, y, ops.stop_gradient(soft), ms.Tensor(weight, ms.float32))
        self.opt(grads)
        if self.teacher is not None:
            self.follow(self.decay)
        return loss

    def follow(self, decay):
        for slow, p in zip(self.teacher.get_parameters(), self.net.get_parameters()):
            ops.assign(slow, decay * slow + (1 - decay) * p)


r = np.random.RandomState(28)
rows = []
for _ in range(8):
    x = r.randn(6, 5).astype(np.float32)
    y = x[:, :1] * x[:, 1:2] + 0.7 * r.randn(6, 1)
    rows.append((ms.Tensor(x), ms.Tensor(y.astype(np.float32))))
net = make_net()
opt = nn.Adam(net.trainable_params(), 0.02)
ensemble = SelfEnsemble(net, opt, begins=10, decay=0.9)

batches = ck.data.resumable(rows, epochs=4)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches)
    point = manager.restore(state)
    for number, (x, y) in enumerate(batches, point.batches_delivered):
        ensemble.step(number, x, y)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
