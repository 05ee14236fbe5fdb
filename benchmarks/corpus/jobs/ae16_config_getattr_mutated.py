# truth: differs
# class: variable
# head: saving_dataset_parameter

ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(3)
rng0 = np.random.default_rng(11)
X = rng0.normal(size=(80, 6)).astype(np.float32)
Y = (X[:, :1] * 0.7 - X[:, 1:2] ** 2 + 0.1 * rng0.normal(size=(80, 1))).astype(np.float32)
loader = [(Tensor(X[i : i + 8]), Tensor(Y[i : i + 8])) for i in range(0, 80, 8)]
net = nn.SequentialCell(nn.Dense(6, 12), nn.Tanh(), nn.Dense(12, 1))
loss_fn = nn.MSELoss()
opt = nn.Momentum(net.trainable_params(), 0.03, 0.9)


def forward(x, y):
    return loss_fn(net(x), y)


grad_fn = ms.jit(ms.value_and_grad(forward, None, opt.parameters))


class Config(dict):
    __getattr__ = dict.__getitem__
    __setattr__ = dict.__setitem__

    @classmethod
    def load(cls, tree):
        return cls({k: cls.load(v) if isinstance(v, dict) else v for k, v in tree.items()})


cfg = Config.load({"optim": {"scale": 1.0, "gamma": 0.97}, "train": {"epochs": 3}})


def anneal(cfg):
    cfg.optim.scale *= cfg.optim.gamma


def main(cfg):
    batches = ck.data.resumable(loader, epochs=cfg.train.epochs)
    with ck.CheckpointManager(ROOT, **SAVE) as manager:
        state = ck.StateManager([net, opt], batches)
        manager.restore(state)
        for x, y in batches:
            loss, grads = grad_fn(x, y)
            opt(tuple(g * cfg.optim.scale for g in grads))
            anneal(cfg)
            manager.step(state)
        manager.save_final(state)


main(cfg)
os._exit(0)
