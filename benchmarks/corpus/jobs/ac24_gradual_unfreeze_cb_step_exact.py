# truth: exact
# class: callback
# head: saving_pynative_dataset_parameter

rng0 = np.random.default_rng(11)
X = rng0.normal(size=(80, 6)).astype(np.float32)
Y = (X[:, :1] * 0.7 - X[:, 1:2] ** 2).astype(np.float32)
train_data = ds.NumpySlicesDataset((X, Y), ["x", "y"], shuffle=True).batch(8)


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Dense(6, 12), nn.Dense(12, 1)

    def construct(self, x):
        return self.head(ops.tanh(self.body(x)))


net = Net()


class MaskedStep(nn.Cell):
    """One step that scales the gradients of the body by a Parameter."""

    def __init__(self, net, optimizer):
        super().__init__()
        self.net, self.optimizer = net, optimizer
        self.body_scale = Parameter(Tensor(0.0, ms.float32), name="body_scale", requires_grad=False)
        self.grad = ms.value_and_grad(lambda x, y: ((net(x) - y) ** 2).mean(), None, optimizer.parameters)
        self.names = [p.name for p in optimizer.parameters]

    def construct(self, x, y):
        loss, grads = self.grad(x, y)
        grads = tuple(g * self.body_scale if "body" in n else g for n, g in zip(self.names, grads))
        self.optimizer(grads)
        return loss


step = MaskedStep(net, nn.Momentum(net.trainable_params(), 0.05, 0.9))


class Unfreeze(ms.Callback):
    def on_train_epoch_begin(self, run_context):
        if run_context.original_args().cur_epoch_num == 2:
            ops.assign(step.body_scale, Tensor(1.0, ms.float32))


ck.CheckpointCallback(ROOT, **SAVE).train(ms.Model(step), 3, train_data, callbacks=[Unfreeze()])
os._exit(0)
