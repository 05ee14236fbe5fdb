# truth: differs
# class: attribute
# head: imports
# A hybrid forecaster: a linear estimator in scikit-learn's style (partial_fit, coef_, t_) fits the trend, the network learns what it leaves over.


ms.set_seed(346)


class BaseEstimator:
    def get_params(self):
        return {k: v for k, v in vars(self).items() if not k.endswith("_")}

    def is_fitted(self):
        return any(k.endswith("_") for k in vars(self))


class SGDRegressor(BaseEstimator):
    def __init__(self, eta0=0.1, power_t=0.25, average=True):
        self.eta0, self.power_t, self.average = eta0, power_t, average

    def partial_fit(self, X, y):
        if not self.is_fitted():
            self.coef_ = np.zeros(X.shape[1])
            self.average_coef_ = np.zeros(X.shape[1])
            self.t_ = 0
        for row, target in zip(X, y):
            self.t_ += 1
            eta = self.eta0 / self.t_**self.power_t
            self.coef_ -= eta * (row @ self.coef_ - target) * row
            self.average_coef_ += (self.coef_ - self.average_coef_) / self.t_
        return self

    def predict(self, X):
        return X @ (self.average_coef_ if self.average else self.coef_)


class Hybrid:
    def __init__(self, linear, net):
        self.linear, self.net = linear, net
        self.cell = ck.AccumulationTrainCell(
            nn.WithLossCell(net, nn.MSELoss()), nn.Adam(net.trainable_params(), 0.01), 2
        ).set_train()

    def partial_fit(self, X, y):
        self.linear.partial_fit(X, y)
        left = (y - self.linear.predict(X)).astype(np.float32)[:, None]
        return self.cell(ms.Tensor(X), ms.Tensor(left))


r = np.random.RandomState(46)
rows = []
for _ in range(8):
    X = r.randn(6, 4).astype(np.float32)
    rows.append((X, (X @ [1.0, -2.0, 0.5, 0.0] + np.sin(3 * X[:, 3])).astype(np.float32)))
model = Hybrid(SGDRegressor(), nn.SequentialCell(nn.Dense(4, 8), nn.Tanh(), nn.Dense(8, 1)))
print("linear part", model.linear.get_params())
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(model.cell, batches)
    manager.restore(state)
    for X, y in batches:
        model.partial_fit(X, y)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
