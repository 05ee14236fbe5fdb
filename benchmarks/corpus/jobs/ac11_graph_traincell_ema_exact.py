# truth: exact
# class: attribute
# head: regression_6_graph_dataset


net = nn.SequentialCell(nn.Dense(6, 12), nn.Tanh(), nn.Dense(12, 1))


class EMATrainCell(nn.TrainOneStepCell):
    def __init__(self, network, optimizer, decay):
        super().__init__(network, optimizer)
        self.decay = decay
        self.ema = self.weights.clone("ema", "same")
        self.count = Parameter(Tensor(0.0, ms.float32), name="ema_count", requires_grad=False)

    def construct(self, x, y):
        loss = self.network(x, y)
        grads = self.grad(self.network, self.weights)(x, y, ops.ones_like(loss))
        loss = ops.depend(loss, self.optimizer(grads))
        decay = ops.minimum(Tensor(self.decay), (1 + self.count) / (10 + self.count))
        for e, w in zip(self.ema, self.weights):
            ops.assign(e, decay * e + (1 - decay) * w)
        ops.assign_add(self.count, Tensor(1.0, ms.float32))
        return loss


opt = nn.Momentum(net.trainable_params(), 0.05, 0.9)
cell = EMATrainCell(nn.WithLossCell(net, nn.MSELoss()), opt, 0.95)
ck.CheckpointCallback(ROOT, **SAVE).train(ms.Model(cell), 3, train_data)
os._exit(0)
