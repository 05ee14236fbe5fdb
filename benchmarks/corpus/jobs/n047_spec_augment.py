# truth: exact, may be named
# class: random
# head: imports
# Speech in small: features per utterance are normalized by their own mean (and kept in a dict), SpecAugment masks come from sample_rng by epoch and number. GRAPH, K = 2.


ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(4447)
FRAMES, BANDS, WORDS = 12, 8, 4


class Corpus:
    def __init__(self, utterances, seed):
        r = np.random.RandomState(seed)
        self.labels = r.randint(0, WORDS, utterances)
        self.waves = r.randn(utterances, FRAMES, BANDS)
        for wave, label in zip(self.waves, self.labels):
            wave[:, 2 * label : 2 * label + 2] += np.sin(np.arange(FRAMES) * (label + 1) / 3)[:, None]
        self.normalized = {}
        self.masked_frames = 0

    def features(self, number):
        if number not in self.normalized:
            wave = self.waves[number]
            self.normalized[number] = (wave - wave.mean(0)) / (wave.std(0) + 1e-3)
        return self.normalized[number]

    def augmented(self, number, epoch):
        rng = ck.data.sample_rng(447, epoch, number)
        features = self.features(number).copy()
        width = int(rng.integers(0, 2 + min(epoch, 3)))  # longer masks in later epochs
        begin = int(rng.integers(0, FRAMES - width))
        features[begin : begin + width] = 0
        band = int(rng.integers(0, BANDS - 1))
        features[:, band : band + 2] = 0
        self.masked_frames += width
        return features.astype(np.float32)


class Recognizer(nn.Cell):
    def __init__(self):
        super().__init__()
        self.frame = nn.SequentialCell(nn.Dense(3 * BANDS, 12), nn.ReLU())
        self.word = nn.Dense(12, WORDS)
        self.loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")

    def construct(self, spliced, label):
        return self.loss(self.word(self.frame(spliced).mean(1)), label)


def splice(features):
    return np.concatenate([features[:, :-2], features[:, 1:-1], features[:, 2:]], -1)


corpus = Corpus(48, seed=47)
rows = [np.arange(i, 48, 8) for i in range(8)]
net = Recognizer()
cell = ck.AccumulationTrainCell(net, nn.Adam(net.trainable_params(), 0.02), accumulation_steps=2).set_train()

batches = ck.data.resumable(rows, epochs=4)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches)
    manager.restore(state)
    for numbers in batches:
        numbers = np.asarray(numbers)
        features = np.stack([corpus.augmented(int(n), batches.epoch) for n in numbers])
        cell(ms.Tensor(splice(features)), ms.Tensor(corpus.labels[numbers].astype(np.int32)))
        manager.step(state)
    manager.save_final(state)
    print(corpus.masked_frames, "frames were masked")
os._exit(0)
