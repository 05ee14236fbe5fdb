# truth: differs
# class: variable
# head: pynative_dataset_ops
# GradNorm-like balancing: each task's weight follows its loss relative to its first loss.

ms.set_seed(107)


class TwoHeads(nn.Cell):
    def __init__(self):
        super().__init__()
        self.body = nn.SequentialCell(nn.Dense(7, 14), nn.ReLU())
        self.depth, self.normal = nn.Dense(14, 1), nn.Dense(14, 3)

    def construct(self, x, depth, normal):
        h = self.body(x)
        return ((self.depth(h) - depth) ** 2).mean(), ops.abs(self.normal(h) - normal).mean()


class BalancedStep(nn.Cell):
    def __init__(self, network, optimizer, alpha=1.5):
        super().__init__(auto_prefix=False)
        self.network, self.optimizer, self.alpha = network, optimizer, alpha
        self.first_losses = None
        self.grad_fn = ms.value_and_grad(self.weighted, None, optimizer.parameters, has_aux=True)

    def weighted(self, x, depth, normal, weights):
        a, b = self.network(x, depth, normal)
        return weights[0] * a + weights[1] * b, a, b

    def construct(self, x, depth, normal):
        losses = np.array([float(v.asnumpy()) for v in self.network(x, depth, normal)])
        if self.first_losses is None:
            self.first_losses = losses
        ratio = losses / self.first_losses
        weights = (ratio / ratio.mean()) ** self.alpha
        weights = 2 * weights / weights.sum()
        (total, _, _), grads = self.grad_fn(x, depth, normal, ms.Tensor(weights, ms.float32))
        self.optimizer(grads)
        return total


r = np.random.RandomState(7)
x = r.randn(60, 7).astype(np.float32)
depth = (x[:, :1] ** 2).astype(np.float32)
normal = np.tanh(x[:, 1:4]).astype(np.float32)
train = ds.NumpySlicesDataset((x, depth, normal), ["x", "depth", "normal"], shuffle=True).batch(6)
net = TwoHeads()
step = BalancedStep(net, nn.Adam(net.trainable_params(), 1e-2))

ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(ms.Model(step), 4, train)
os._exit(0)
