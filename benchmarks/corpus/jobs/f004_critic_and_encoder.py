# truth: exact
# class: attribute
# head: imports_ops
# An encoder and an adversary that guesses a protected attribute; two train cells of different K, both given to ckptkit.


ms.set_seed(8)
ms.set_context(mode=ms.PYNATIVE_MODE)


class Encoder(nn.Cell):
    def __init__(self):
        super().__init__()
        self.layers = nn.SequentialCell(nn.Dense(8, 6), nn.Tanh())

    def construct(self, x):
        return self.layers(x)


class EncoderLoss(nn.Cell):
    def __init__(self, enc):
        super().__init__()
        self.enc = enc
        self.head = nn.Dense(6, 1)

    def construct(self, x, y, guess):
        z = self.enc(x)
        task = ((self.head(z) - y) ** 2).mean()
        return task - 0.1 * ((z.mean(1, keep_dims=True) - guess) ** 2).mean()


class AdversaryLoss(nn.Cell):
    def __init__(self):
        super().__init__()
        self.guess = nn.Dense(6, 1)

    def construct(self, z, a):
        return ((self.guess(z) - a) ** 2).mean()


enc = Encoder()
main_loss, adv_loss = EncoderLoss(enc), AdversaryLoss()
main_loss.update_parameters_name("main.")
adv_loss.update_parameters_name("adv.")
main_cell = ck.AccumulationTrainCell(main_loss, nn.Adam(main_loss.trainable_params(), 0.01), 3).set_train()
adv_cell = ck.AccumulationTrainCell(adv_loss, nn.Momentum(adv_loss.trainable_params(), 0.05, 0.9), 2).set_train()

r = np.random.RandomState(4)
rows = []
for _ in range(8):
    x = r.randn(5, 8).astype(np.float32)
    rows.append((ms.Tensor(x), ms.Tensor(x[:, :1] * 2), ms.Tensor((x[:, 1:2] > 0).astype(np.float32))))

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(main_cell, batches, adversary=adv_cell)
    manager.restore(state)
    for x, y, a in batches:
        z = ops.stop_gradient(enc(x))
        adv_cell(z, a)
        guess = ops.stop_gradient(adv_loss.guess(z))
        main_cell(x, y, guess)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
