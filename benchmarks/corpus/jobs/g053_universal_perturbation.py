# truth: exact
# class: attribute
# head: imports_parameter
# Training against a universal adversarial perturbation: it is a Parameter of its own cell, climbed by the sign of its gradient.


ms.set_seed(92)


class Universal(nn.Cell):
    """x + delta, the same delta for every image."""

    def __init__(self, shape, eps=0.3):
        super().__init__()
        self.delta = Parameter(Tensor(np.zeros(shape, np.float32)), name="uap.delta")
        self.eps = eps

    def construct(self, x):
        return x + self.delta

    def ascend(self, grad, lr=0.05):
        new = self.delta.asnumpy() + lr * np.sign(grad.asnumpy())
        ops.assign(self.delta, Tensor(np.clip(new, -self.eps, self.eps).astype(np.float32)))


def conv_net():
    return nn.SequentialCell(
        nn.Conv2d(2, 6, 3, pad_mode="same", has_bias=True),
        nn.ReLU(),
        nn.MaxPool2d(2, 2),
        nn.Flatten(),
        nn.Dense(6 * 9, 3),
    )


net = conv_net()
attack = Universal((1, 2, 6, 6))
opt = nn.Momentum(net.trainable_params(), learning_rate=0.05, momentum=0.9)
ce = nn.CrossEntropyLoss(label_smoothing=0.1)


def objective(x, y):
    return 0.5 * ce(net(x), y) + 0.5 * ce(net(attack(x)), y)


learn = ms.value_and_grad(objective, None, net.trainable_params())
climb = ms.grad(objective, None, ms.ParameterTuple(attack.trainable_params()))

rng = np.random.RandomState(1)
images = rng.rand(50, 2, 6, 6).astype(np.float32)
labels = np.digitize(images[:, 0].mean((1, 2)) - images[:, 1].mean((1, 2)), [-0.05, 0.05]).astype(np.int32)
batches = ck.data.resumable([(Tensor(images[i::10].copy()), Tensor(labels[i::10].copy())) for i in range(10)], epochs=3)

with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, attack, opt], batches)
    manager.restore(state)
    for x, y in batches:
        manager.fence()
        grads = climb(x, y)
        attack.ascend(grads[0])
        loss, grads = learn(x, y)
        opt(grads)
        manager.step(state, {"loss": loss})
    manager.save_final(state)
os._exit(0)
