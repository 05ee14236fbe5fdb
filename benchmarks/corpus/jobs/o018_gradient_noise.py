# truth: exact
# class: global
# head: pynative_dataset_ops
# Gradient noise that fades (Neelakantan et al.): drawn by ops.standard_normal in PYNATIVE mode, its size from the optimizer's own global_step.

ms.set_seed(3518)


class NoisyStep(nn.TrainOneStepCell):
    def __init__(self, network, optimizer, eta=0.3, gamma=0.55):
        super().__init__(network, optimizer)
        self.eta, self.gamma = eta, gamma

    def construct(self, *inputs):
        loss = self.network(*inputs)
        grads = self.grad_no_sens(self.network, self.weights)(*inputs)
        done = int(self.optimizer.global_step.asnumpy().item())
        sigma = (self.eta / (1 + done) ** self.gamma) ** 0.5
        grads = tuple(g + sigma * ops.standard_normal(g.shape) for g in grads)
        self.optimizer(grads)
        return loss


r = np.random.RandomState(18)
x = r.randn(64, 5).astype(np.float32)
y = np.tanh(x @ r.randn(5, 2)).astype(np.float32)
train = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=True).batch(8)
net = nn.SequentialCell(nn.Dense(5, 12), nn.Tanh(), nn.Dense(12, 12), nn.Tanh(), nn.Dense(12, 2))
step = NoisyStep(nn.WithLossCell(net, nn.MSELoss()), nn.Momentum(net.trainable_params(), 0.02, 0.9))

ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(ms.Model(step), 4, train)
os._exit(0)
