# truth: exact
# class: attribute
# head: pynative_dataset_ops
# Mean teacher: the average of the weights is a second network inside the loss, so its Parameters are stored with the student's; consistency with noisy inputs from the data.

ms.set_seed(3503)


def mlp():
    return nn.SequentialCell(nn.Dense(5, 12), nn.Tanh(), nn.Dense(12, 2))


class MeanTeacherLoss(nn.Cell):
    def __init__(self, weight):
        super().__init__()
        self.student, self.teacher = mlp(), mlp()
        for slow, fast in zip(self.teacher.get_parameters(), self.student.get_parameters()):
            slow.set_data(fast.value())
            slow.requires_grad = False
        self.weight = weight
        self.mse = nn.MSELoss()

    def construct(self, x, noisy, y):
        out = self.student(x)
        target = ops.stop_gradient(self.teacher(noisy))
        return self.mse(out, y) + self.weight * self.mse(out, target)


class MeanTeacherStep(nn.TrainOneStepCell):
    def __init__(self, network, optimizer, decay):
        super().__init__(network, optimizer)
        self.decay = decay
        self.fast = list(network.student.get_parameters())
        self.slow = list(network.teacher.get_parameters())

    def construct(self, x, noisy, y):
        loss = self.network(x, noisy, y)
        grads = self.grad_no_sens(self.network, self.weights)(x, noisy, y)
        self.optimizer(grads)
        for slow, fast in zip(self.slow, self.fast):
            ops.assign(slow, self.decay * slow + (1 - self.decay) * fast)
        return loss


r = np.random.RandomState(3)
x = r.randn(60, 5).astype(np.float32)
noisy = (x + 0.2 * r.randn(60, 5)).astype(np.float32)
y = np.stack([x[:, 0] * x[:, 1], np.abs(x[:, 2])], 1).astype(np.float32)
train = ds.NumpySlicesDataset((x, noisy, y), ["x", "noisy", "y"], shuffle=True).batch(6)
loss = MeanTeacherLoss(0.5)
step = MeanTeacherStep(loss, nn.Adam(loss.trainable_params(), 0.01), 0.9)

ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(ms.Model(step), 4, train)
os._exit(0)
