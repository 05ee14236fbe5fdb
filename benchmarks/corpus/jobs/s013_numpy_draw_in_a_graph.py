# truth: differs
# class: random
# head: accumulating_6_graph
# `construct` draws by NumPy; a compiled graph keeps what was drawn when it was compiled.

class Scaled(nn.Cell):
    def construct(self, x):
        return x * np.random.rand()


ck.CheckpointCallback(ROOT, **SAVE).train(ms.Model(accumulating(Loss(nn.SequentialCell(nn.Dense(8, 8), Scaled(), nn.Dense(8, 3))))), EPOCHS, slices().batch(6), callbacks=[])
