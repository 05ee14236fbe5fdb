# truth: differs
# class: attribute
# head: pynative_ops
# A forecaster of the loss is given by name; its state_dict keeps the manifest small with the last four losses, but the trend is fitted to the last twelve.

ms.set_seed(4419)


class Forecaster:
    def __init__(self, horizon=12):
        self.horizon = horizon
        self.history = []

    def add(self, loss):
        self.history.append(loss)
        del self.history[: -self.horizon]

    def slope(self):
        if len(self.history) < 3:
            return 0.0
        return float(np.polyfit(np.arange(len(self.history)), self.history, 1)[0])

    def state_dict(self):
        return {"history": [float(v) for v in self.history[-4:]], "horizon": self.horizon}

    def load_state_dict(self, state):
        self.horizon = state["horizon"]
        self.history = list(state["history"])


def main(root):
    r = np.random.RandomState(19)
    rows = []
    for _ in range(10):
        x = r.randn(6, 4).astype(np.float32)
        rows.append((ms.Tensor(x), ms.Tensor((np.sin(2 * x[:, :1]) * x[:, 1:2]).astype(np.float32))))
    net = nn.SequentialCell(nn.Dense(4, 10), nn.Tanh(), nn.Dense(10, 1))
    opt = nn.Adam(net.trainable_params(), 0.02)
    mse = nn.MSELoss()
    gradients = ms.value_and_grad(lambda x, y: mse(net(x), y), None, net.trainable_params())
    forecaster = Forecaster()

    batches = ck.data.resumable(rows, epochs=3)
    with ck.CheckpointManager(root, save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")) as manager:
        state = ck.StateManager([net, opt], batches, forecaster=forecaster)
        manager.restore(state)
        for x, y in batches:
            loss, grads = gradients(x, y)
            forecaster.add(float(loss.asnumpy()))
            rate = 0.02 * float(np.exp(np.clip(10 * forecaster.slope(), -1, 1)))
            manager.fence()
            ops.assign(opt.learning_rate, ms.Tensor(rate, ms.float32))
            opt(grads)
            manager.step(state)
        manager.save_final(state)


main(os.environ["ROOT"])
os._exit(0)
