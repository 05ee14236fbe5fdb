# truth: exact
# class: attribute
# head: pynative_ops
# Learning without forgetting: when the second task begins, at a fixed batch, the network is copied into a second one that is given by name and restrains it.

SWITCH, EPOCHS = 12, 3


def make():
    ms.set_seed(4359)
    return nn.SequentialCell(nn.Dense(5, 8), nn.Tanh(), nn.Dense(8, 2))


class Task:
    def __init__(self, name, head, function):
        self.name, self.function = name, function
        self.head = ms.Tensor(np.eye(2, dtype=np.float32)[head : head + 1])
        self.batches = 0

    def targets(self, x):
        self.batches += 1
        return ms.Tensor(self.function(x).astype(np.float32))


TASKS = [
    Task("product", 0, lambda x: x[:, :1] * x[:, 1:2]),
    Task("distance", 1, lambda x: np.abs(x[:, 2:3] - x[:, 3:4])),
]
net, old = make(), make()
for p in old.get_parameters():
    p.requires_grad = False
opt = nn.Adam(net.trainable_params(), 0.02)


def forward(x, y, remembered, head, restraint):
    out = net(x)
    loss = (((out - y) * head) ** 2).sum(-1).mean()
    return loss + restraint * ((out[:, :1] - remembered) ** 2).mean()


gradients = ms.value_and_grad(forward, None, net.trainable_params())
rows = [(x,) for x in np.random.RandomState(59).randn(8, 6, 5).astype(np.float32)]
batches = ck.data.resumable(rows, epochs=EPOCHS)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches, old=old)
    point = manager.restore(state)
    for number, (x,) in enumerate(batches, point.batches_delivered):
        if number == SWITCH:
            manager.fence()
            for before, now in zip(old.get_parameters(), net.get_parameters()):
                ops.assign(before, now)
        task = TASKS[number >= SWITCH]
        inputs = ms.Tensor(x)
        remembered = ops.stop_gradient(old(inputs)[:, :1])
        restraint = ms.Tensor(0.5 if number >= SWITCH else 0.0, ms.float32)
        loss, grads = gradients(inputs, task.targets(x), remembered, task.head, restraint)
        opt(grads)
        manager.step(state)
    manager.save_final(state)
    print({task.name: task.batches for task in TASKS})
os._exit(0)
