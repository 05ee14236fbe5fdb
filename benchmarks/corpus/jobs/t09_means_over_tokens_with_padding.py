# truth: exact
# class: other
# head: accumulating_6_graph
# Means over tokens, of which some are padding, clipped, without a remainder.

class Tokens(nn.Cell):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(9, 6, padding_idx=0), nn.Dense(6, 9)

    def construct(self, x, y):
        mask = (y != 0).astype(ms.float32)
        logits = self.head(ops.tanh(self.embed(x))).reshape(-1, 9)
        loss = ops.cross_entropy(logits, y.reshape(-1), reduction="none").reshape(y.shape)
        return (loss * mask).sum(), mask.sum()


words = np.random.default_rng(1).integers(0, 9, (48, 5), np.int32)
loss = Tokens()
options = {"normalize": "weights", "clip_norm": 0.5, "remainder": "drop"}
cell = ck.AccumulationTrainCell(loss, nn.Adam(loss.trainable_params(), 1e-2), 3, **options)
data = ds.NumpySlicesDataset({"x": words, "y": np.roll(words, -1, 1)}, shuffle=True).batch(6)
ck.CheckpointCallback(ROOT, **SAVE).train(ms.Model(cell), EPOCHS, data)
