# truth: exact, may be named
# class: callback
# head: regression_6_graph_dataset



class Gated(nn.Cell):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.gate = nn.Dense(6, 8), nn.Dense(6, 8), nn.Dense(6, 8)
        self.out = nn.Dense(8, 1)
        self.temperature = 2.0

    def construct(self, x):
        g = ops.sigmoid(self.gate(x) / self.temperature)
        return self.out(g * self.a(x) + (1 - g) * self.b(x))


net = Gated()
opt = nn.Momentum(net.trainable_params(), 0.05, 0.9)
model = ms.Model(net, nn.MSELoss(), opt)


class Anneal(ms.Callback):
    def on_train_step_end(self, run_context):
        cell = run_context.original_args().network
        net.temperature = max(0.5, net.temperature * 0.95)


ck.CheckpointCallback(ROOT, **SAVE).train(model, 3, train_data, callbacks=[Anneal()])
os._exit(0)
