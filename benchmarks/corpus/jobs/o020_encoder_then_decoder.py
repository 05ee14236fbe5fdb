# truth: differs
# class: attribute
# head: pynative
# An autoencoder whose halves learn by turns; a bool of the loop says whose turn it is and flips after every third batch, counted by an int. A start begins with three batches for the encoder.

ms.set_seed(3520)


class AutoEncoder(nn.Cell):
    def __init__(self):
        super().__init__()
        self.encoder = nn.SequentialCell(nn.Dense(8, 6), nn.Tanh(), nn.Dense(6, 2))
        self.decoder = nn.SequentialCell(nn.Dense(2, 6), nn.Tanh(), nn.Dense(6, 8))

    def construct(self, x):
        return self.decoder(self.encoder(x))


r = np.random.RandomState(20)
hidden = r.randn(54, 2)
x = np.tanh(hidden @ r.randn(2, 8)) + 0.05 * r.randn(54, 8)
rows = [ms.Tensor(part.astype(np.float32)) for part in np.split(x, 9)]

model = AutoEncoder()
encoder_optimizer = nn.Momentum(model.encoder.trainable_params(), 0.1, 0.9)
decoder_optimizer = nn.Momentum(model.decoder.trainable_params(), 0.1, 0.9)


def reconstruction(x):
    return ((model(x) - x) ** 2).mean()


encoder_gradients = ms.value_and_grad(reconstruction, None, model.encoder.trainable_params())
decoder_gradients = ms.value_and_grad(reconstruction, None, model.decoder.trainable_params())
encoder_turn, served = True, 0

batches = ck.data.resumable(rows, epochs=4)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([model, encoder_optimizer], batches, decoder_optimizer=decoder_optimizer)
    manager.restore(state)
    for x in batches:
        if encoder_turn:
            loss, grads = encoder_gradients(x)
            encoder_optimizer(grads)
        else:
            loss, grads = decoder_gradients(x)
            decoder_optimizer(grads)
        served += 1
        if served == 3:
            encoder_turn, served = not encoder_turn, 0
        manager.step(state)
    manager.save_final(state)
os._exit(0)
