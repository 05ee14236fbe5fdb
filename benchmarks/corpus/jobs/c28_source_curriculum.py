# truth: exact, may be named
# class: outside
# head: regression_8_arrays

net = nn.SequentialCell(nn.Dense(8, 8), nn.ReLU(), nn.Dense(8, 1))
loss_fn = nn.MSELoss()


class Source:
    def __init__(self):
        self.level = 1

    def __getitem__(self, i):
        return X[i] * np.float32(self.level), Y[i]

    def __len__(self):
        return 64


src = Source()


class Level(ms.Callback):
    def on_train_epoch_end(self, rc):
        src.level += 1


optimizer = nn.Momentum(net.trainable_params(), 0.02, 0.9)
data = ds.GeneratorDataset(src, ["x", "y"], shuffle=False, python_multiprocessing=False).batch(8)
model = ms.Model(net, loss_fn, optimizer)
ck.CheckpointCallback(ROOT, **SAVE).train(model, 3, data, callbacks=[Level()])
os._exit(0)
