# truth: exact
# class: data
# head: imports_dataset
# A Pipeline (impute, scale, whiten) learns its statistics from the whole data before training and only transforms after that; Model.train.


ms.set_seed(3)


class Imputer:
    def fit(self, X):
        self.fill_ = np.nanmedian(X, axis=0)
        return self

    def transform(self, X):
        return np.where(np.isnan(X), self.fill_, X)


class Scaler:
    def fit(self, X):
        self.mean_, self.scale_ = X.mean(0), X.std(0) + 1e-6
        return self

    def transform(self, X):
        return (X - self.mean_) / self.scale_


class Pipeline:
    def __init__(self, *steps):
        self.steps = steps

    def fit_transform(self, X):
        for step in self.steps:
            X = step.fit(X).transform(X)
        return X

    def transform(self, X):
        for step in self.steps:
            X = step.transform(X)
        return X


r = np.random.RandomState(55)
raw = r.gamma(2.0, 2.0, size=(64, 8))
label = (raw[:, 0] > raw[:, 1]).astype(np.int32)
raw[r.rand(64, 8) < 0.1] = np.nan

prepare = Pipeline(Imputer(), Scaler())
train_x = prepare.fit_transform(raw).astype(np.float32)
dataset = ds.NumpySlicesDataset((train_x, label), ["x", "y"], shuffle=True).batch(8)

net = nn.SequentialCell(nn.Dense(8, 10), nn.ReLU(), nn.Dense(10, 2))
cell = ck.AccumulationTrainCell(
    nn.WithLossCell(net, nn.CrossEntropyLoss()), nn.Adam(net.trainable_params(), 0.01), accumulation_steps=4
)
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(ms.Model(cell), 3, dataset)
probe = ms.Tensor(prepare.transform(np.full((1, 8), np.nan)).astype(np.float32))
print("answer to an empty form:", net(probe).asnumpy())
os._exit(0)
