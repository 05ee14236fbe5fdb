# truth: exact
# class: other
# head: accumulating_6_graph
# A parameter that decays until it is denormal, in a loop by hand.

class Decay(nn.Cell):
    def __init__(self):
        super().__init__()
        self.moments = ms.Parameter(ms.Tensor(np.full(1000, 1.4e-38, np.float32)), name="moments")

    def construct(self, x):
        self.moments = self.moments * 0.9
        return self.moments.sum() + x.sum()


cell = Decay()
rows = [(ms.Tensor(X[i : i + 6]), ms.Tensor(Y[i : i + 6])) for i in range(0, 48, 6)]
for x, y in ck.loop(ROOT, rows, epochs=EPOCHS, train=[cell], **SAVE):
    cell(x)
