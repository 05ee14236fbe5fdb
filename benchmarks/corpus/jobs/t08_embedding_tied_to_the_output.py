# truth: exact
# class: other
# head: accumulating_6_graph
# One table of weights is the first layer and the last one.

class Tied(nn.Cell):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(9, 6)
        self.bias = ms.Parameter(ops.zeros(9), name="bias")

    def construct(self, x, y):
        logits = ops.matmul(ops.tanh(self.embed(x)), self.embed.embedding_table.T) + self.bias
        return ops.cross_entropy(logits, y)


words = np.random.default_rng(0).integers(0, 9, 48, np.int32)
data = ds.NumpySlicesDataset({"x": words, "y": (words + 1) % 9}).batch(6)
ck.CheckpointCallback(ROOT, **SAVE).train(ms.Model(accumulating(Tied())), EPOCHS, data)
