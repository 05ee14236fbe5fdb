# truth: exact
# class: random
# head: imports_ops
# Scheduled sampling in a small decoder: the coin of each step is drawn from sample_rng(seed, epoch, number).


SEED = 1234
ms.set_seed(SEED)
V, D, T = 9, 8, 5


class Decoder(nn.Cell):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(V, D)
        self.cell = nn.GRUCell(D, D)
        self.out = nn.Dense(D, V)

    def construct(self, tokens, coins):
        h = ops.zeros((tokens.shape[0], D), ms.float32)
        prev = tokens[:, 0]
        loss = 0.0
        for t in range(1, T):
            h = self.cell(self.emb(prev), h)
            logits = self.out(h)
            loss = loss + ops.cross_entropy(logits, tokens[:, t])
            own = logits.argmax(-1).astype(ms.int32)
            prev = coins[:, t] * own + (1 - coins[:, t]) * tokens[:, t]
        return loss / (T - 1)


def own_share(step, total=24):
    return 0.8 * step / total


def main():
    corpus = np.random.RandomState(SEED).randint(0, V, size=(8, 4, T)).astype(np.int32)
    decoder = Decoder()
    cell = ck.AccumulationTrainCell(decoder, nn.Adam(decoder.trainable_params(), 0.01), 2, clip_norm=1.0)
    cell.set_train()
    batches = ck.data.resumable(list(corpus), epochs=3)
    with ck.CheckpointManager(
        os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
    ) as manager:
        state = ck.StateManager(cell, batches)
        done = manager.restore(state).batches_delivered
        for step, tokens in enumerate(batches, done):
            rng = ck.data.sample_rng(SEED, batches.epoch, step)
            coins = (rng.random(tokens.shape) < own_share(step)).astype(np.int32)
            cell(ms.Tensor(tokens), ms.Tensor(coins))
            manager.step(state)
        manager.save_final(state)


main()
os._exit(0)
