# truth: exact
# class: attribute
# head: regression_8_dataset



class Block(nn.Cell):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.o = nn.Dense(8, 8), nn.Dense(8, 8), nn.Dense(8, 1)

    def construct(self, x):
        x = self.a(x)
        if np.random.rand() > 0.3:
            x = x + self.b(x)
        return self.o(x)


loss = nn.WithLossCell(Block(), loss_fn)
optimizer = nn.SGD(loss.trainable_params(), 0.01)
cell = ck.AccumulationTrainCell(loss, optimizer, 3)
ck.CheckpointCallback(ROOT, **SAVE).train(ms.Model(cell), 3, data)
os._exit(0)
