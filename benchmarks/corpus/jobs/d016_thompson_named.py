# truth: exact
# class: data
# head: saving_tensor
# the Beta counts of a Thompson sampler and its generator are given by name

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(1)
g = np.random.default_rng(5)
X, Y = g.normal(size=(64, 8)).astype(np.float32), g.normal(size=(64, 1)).astype(np.float32)
rows = [(Tensor(X[i * 8 : i * 8 + 8]), Tensor(Y[i * 8 : i * 8 + 8])) for i in range(8)]
net = nn.SequentialCell(nn.Dense(8, 8), nn.ReLU(), nn.Dense(8, 1))
loss_fn = nn.MSELoss()
optimizer = nn.Momentum(net.trainable_params(), 0.02, 0.9)
grad_fn = ms.value_and_grad(lambda x, y, w: loss_fn(net(x), y) * w, None, optimizer.parameters)


def train_step(x, y, w=1.0):
    loss, grads = grad_fn(x, y, w)
    optimizer(grads)
    return loss


class Thompson:
    def __init__(self, names):
        self.names = list(names)
        self.wins = {n: 1.0 for n in names}
        self.losses = {n: 1.0 for n in names}

    def choose(self, rng):
        return max(self.names, key=lambda n: rng.beta(self.wins[n], self.losses[n]))

    def reward(self, name, better):
        table = self.wins if better else self.losses
        table[name] += 1.0

    def state_dict(self):
        return {"wins": dict(self.wins), "losses": dict(self.losses)}

    def load_state_dict(self, state):
        self.wins.update(state["wins"])
        self.losses.update(state["losses"])


AUGMENT = {"none": lambda x: x, "flip": lambda x: -x, "shift": lambda x: x + 0.3}
rng = np.random.default_rng(8)
chooser = Thompson(AUGMENT)
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches, rng=rng, chooser=chooser)
    manager.restore(state)
    for x, y in batches:
        arm = chooser.choose(rng)
        before = float(loss_fn(net(x), y).asnumpy())
        train_step(AUGMENT[arm](x), y)
        chooser.reward(arm, float(loss_fn(net(x), y).asnumpy()) < before)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
