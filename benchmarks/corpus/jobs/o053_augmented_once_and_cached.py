# truth: differs
# class: data
# head: pynative
# A dataset augments a row at its first use and keeps the result for the later epochs; the generator is given by name, the cache is not, so a start draws the kept rows anew.

ms.set_seed(3553)


class CachedFeatures:
    def __init__(self, signals, rng):
        self.signals, self.rng = signals, rng
        self.cache = {}

    def __getitem__(self, number):
        if number not in self.cache:
            self.cache[number] = self.compute(self.signals[number])
        return self.cache[number]

    def compute(self, signal):
        shift = int(self.rng.integers(len(signal)))
        noisy = np.roll(signal, shift) + self.rng.normal(0, 0.3, len(signal))
        spectrum = np.abs(np.fft.rfft(noisy))
        return (spectrum / len(signal)).astype(np.float32)


def main(root):
    r = np.random.RandomState(53)
    time = np.arange(16)
    pitch = r.uniform(0.5, 3, 48)
    signals = np.sin(pitch[:, None] * time)
    rng = np.random.default_rng(3553)
    features = CachedFeatures(signals, rng)
    orders = [np.arange(i * 6, i * 6 + 6) for i in range(8)]

    net = nn.SequentialCell(nn.Dense(9, 12), nn.ReLU(), nn.Dense(12, 1))
    loss = nn.WithLossCell(net, nn.MSELoss())
    step = nn.TrainOneStepCell(loss, nn.Adam(net.trainable_params(), 0.02)).set_train()

    batches = ck.data.resumable(orders, epochs=4)
    with ck.CheckpointManager(root, save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")) as manager:
        state = ck.StateManager(step, batches, rng=rng)
        manager.restore(state)
        for numbers in batches:
            numbers = [int(n) for n in np.asarray(numbers)]
            x = np.stack([features[n] for n in numbers])
            y = pitch[numbers, None].astype(np.float32)
            step(ms.Tensor(x), ms.Tensor(y))
            manager.step(state)
        manager.save_final(state)


main(os.environ["ROOT"])
os._exit(0)
