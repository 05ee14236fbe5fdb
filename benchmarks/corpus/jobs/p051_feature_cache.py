# truth: exact
# class: file
# head: imports_hashlib_dataset
# Spectra are computed once and cached on disk; a start that finds them there reads them.


ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(151)
CACHE = os.environ["ROOT"] + "-cache"
os.makedirs(CACHE, exist_ok=True)


def spectrum(signal):
    key = hashlib.sha1(signal.tobytes()).hexdigest()[:16]
    path = os.path.join(CACHE, key + ".npy")
    try:
        return np.load(path)
    except (FileNotFoundError, ValueError, EOFError):
        value = np.abs(np.fft.rfft(signal * np.hanning(len(signal)))).astype(np.float32)
        np.save(path + f".{os.getpid()}.npy", value)
        os.replace(path + f".{os.getpid()}.npy", path)
        return value


class Signals:
    def __init__(self, count=72, length=32):
        r = np.random.RandomState(52)
        self.labels = r.randint(0, 3, count).astype(np.int32)
        t = np.arange(length) / length
        self.signals = [np.sin(2 * np.pi * (2 + 3 * k) * t) + r.randn(length) for k in self.labels]

    def __getitem__(self, index):
        return spectrum(self.signals[index]), self.labels[index]

    def __len__(self):
        return len(self.signals)


train = ds.GeneratorDataset(Signals(), ["x", "label"], shuffle=True, num_parallel_workers=1).batch(8)
net = nn.SequentialCell(nn.Dense(17, 16), nn.ReLU(), nn.Dense(16, 3))
loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
model = ms.Model(net, loss, nn.Momentum(net.trainable_params(), 0.02, 0.9))

ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
point = ckpt.resume(model, train, epochs=4)
if not point.complete:
    model.train(4, train, callbacks=[ckpt], initial_epoch=point.epoch)
os._exit(0)
