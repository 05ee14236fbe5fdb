# truth: exact
# class: attribute
# head: regression_6_graph_dataset



class FadeIn(nn.Cell):
    def __init__(self):
        super().__init__()
        self.low, self.high, self.head = nn.Dense(6, 8), nn.Dense(6, 8), nn.Dense(8, 1)
        self.alpha = Parameter(Tensor(0.0, ms.float32), name="alpha", requires_grad=False)

    def construct(self, x):
        alpha = ops.minimum(self.alpha, Tensor(1.0, ms.float32))
        out = self.head((1 - alpha) * self.low(x) + alpha * self.high(x))
        ops.assign_add(self.alpha, Tensor(0.05, ms.float32))
        return out


net = FadeIn()
opt = nn.Adam(net.trainable_params(), 0.01)
model = ms.Model(net, nn.MSELoss(), opt)
ck.CheckpointCallback(ROOT, **SAVE).train(model, 3, train_data)
os._exit(0)
