# truth: differs
# class: attribute
# head: regression_8_rows
# cfg.loss.aux_weight, in a nested EasyDict, is annealed in place and weighs a part of the loss



class EasyDict(dict):
    """Attribute access to nested dicts, as in many config files."""

    def __init__(self, mapping):
        super().__init__({k: EasyDict(v) if isinstance(v, dict) else v for k, v in mapping.items()})

    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError as error:
            raise AttributeError(name) from error

    __setattr__ = dict.__setitem__


cfg = EasyDict(
    {
        "model": {"hidden": 8},
        "optim": {"lr": 0.02, "momentum": 0.9},
        "loss": {"aux_weight": 1.0, "anneal": 0.85},
        "train": {"epochs": 3},
    }
)
net = nn.SequentialCell(nn.Dense(8, cfg.model.hidden), nn.ReLU(), nn.Dense(cfg.model.hidden, 1))
optimizer = nn.Momentum(net.trainable_params(), cfg.optim.lr, cfg.optim.momentum)


def forward_fn(x, y):
    out = net(x)
    return ((out - y) ** 2).mean() + cfg.loss.aux_weight * ops.abs(out - y).mean()


grad_fn = ms.value_and_grad(forward_fn, None, optimizer.parameters)


def after_iteration(cfg):
    cfg.loss.aux_weight *= cfg.loss.anneal


batches = ck.data.resumable(rows, epochs=cfg.train.epochs)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches)
    manager.restore(state)
    for x, y in batches:
        loss, grads = grad_fn(x, y)
        optimizer(grads)
        after_iteration(cfg)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
