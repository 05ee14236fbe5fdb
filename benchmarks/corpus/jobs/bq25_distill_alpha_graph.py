# truth: differs
# class: attribute
# head: root_dataset_tensor_ops

ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(8)


class Distiller(nn.Cell):
    def __init__(self, student, teacher, alpha=0.9):
        super().__init__(auto_prefix=False)
        self.student, self.teacher = student, teacher
        self.alpha = alpha

    def construct(self, x, y, alpha):
        s, t = self.student(x), ops.stop_gradient(self.teacher(x))
        return alpha * ((s - t) ** 2).mean() + (1 - alpha) * ((s - y) ** 2).mean()


class AlphaDecay:
    """Trust the teacher less and less, in steps that depend on the gap to the moving average of the loss."""

    def __init__(self, distiller, factor=0.95):
        self.distiller, self.factor, self.slow = distiller, factor, None

    def step(self, loss):
        if self.slow is not None and loss < self.slow:
            self.distiller.alpha *= self.factor
        self.slow = loss if self.slow is None else 0.7 * self.slow + 0.3 * loss


def network(width, prefix):
    net = nn.SequentialCell(nn.Dense(5, width), nn.Tanh(), nn.Dense(width, 1))
    net.update_parameters_name(prefix)
    return net


rng = np.random.default_rng(3)
X = rng.normal(size=(96, 5)).astype(np.float32)
Y = np.sin(X[:, :1] * 2).astype(np.float32)
dataset = ds.NumpySlicesDataset((X, Y), ["x", "y"], shuffle=True).batch(8)
student, teacher = network(8, "student."), network(24, "teacher.")
teacher.set_train(False)
distiller = Distiller(student, teacher)
optimizer = nn.Momentum(student.trainable_params(), 0.05, 0.9)
grad_fn = ms.value_and_grad(distiller, None, optimizer.parameters)
decay = AlphaDecay(distiller)


def train_epochs(epochs=3):
    batches = ck.data.resumable(dataset, epochs)
    with ck.CheckpointManager(ROOT, save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")) as manager:
        state = ck.StateManager([student, teacher, optimizer], batches)
        manager.restore(state)
        for x, y in batches:
            loss, grads = grad_fn(x, y, Tensor(distiller.alpha, ms.float32))
            optimizer(grads)
            decay.step(float(loss))
            manager.step(state)
        manager.save_final(state)


train_epochs()
os._exit(0)
