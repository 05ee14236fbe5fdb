# truth: differs
# class: attribute
# head: pynative_dataset_ops
# Gradients that oppose those of the step before are projected; the old ones are put into vars(self), past MindSpore's __setattr__.

ms.set_seed(3138)


class ProjectingStep(nn.TrainOneStepCell):
    def __init__(self, network, optimizer):
        super().__init__(network, optimizer)
        self.both = ms.value_and_grad(network, None, optimizer.parameters)

    @staticmethod
    def project(g, last):
        dot = (g * last).sum()
        part = ops.minimum(dot, ops.zeros_like(dot)) / ((last * last).sum() + 1e-12)
        return g - part * last

    def construct(self, *inputs):
        loss, grads = self.both(*inputs)
        last = vars(self).get("_last_gradients") or grads
        vars(self)["_last_gradients"] = grads
        self.optimizer(tuple(map(self.project, grads, last)))
        return loss


r = np.random.RandomState(38)
x = r.randn(32, 4).astype(np.float32)
y = (r.randn(32, 2) + x[:, :2]).astype(np.float32)
net = nn.SequentialCell(nn.Dense(4, 8), nn.Tanh(), nn.Dense(8, 2))
step = ProjectingStep(nn.WithLossCell(net, nn.MSELoss()), nn.Momentum(net.trainable_params(), 0.1, 0.5))
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(ms.Model(step), 3, ds.NumpySlicesDataset((x, y), ["x", "y"]).batch(4))
os._exit(0)
