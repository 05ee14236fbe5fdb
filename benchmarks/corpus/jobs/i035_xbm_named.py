# truth: exact
# class: attribute
# head: imports_ops
# Metric learning with cross-batch memory (XBM), built from a config by a registry; its ring of features and labels has state_dict and is given by name.


ms.set_seed(335)
CONFIG = {
    "seed": 35,
    "model": {"type": "mlp", "dims": [6, 12, 4]},
    "memory": {"type": "xbm", "size": 24, "dim": 4, "start": 4},
    "optim": {"lr": 0.02},
}
REGISTRY = {}


def register(name):
    def wrap(obj):
        REGISTRY[name] = obj
        return obj

    return wrap


def build(cfg):
    cfg = {**cfg}
    return REGISTRY[cfg.pop("type")](**cfg)


@register("mlp")
def mlp(dims):
    layers = []
    for a, b in zip(dims, dims[1:]):
        layers += [nn.Dense(a, b), nn.Tanh()]
    return nn.SequentialCell(layers[:-1])


@register("xbm")
class CrossBatchMemory:
    def __init__(self, size, dim, start):
        self.start = start
        self.features = np.zeros((size, dim), np.float32)
        self.labels = np.full(size, -1, np.int64)
        self.pointer = 0

    @property
    def ready(self):
        return (self.labels >= 0).sum() >= self.start

    def enqueue(self, features, labels):
        place = (self.pointer + np.arange(len(labels))) % len(self.labels)
        self.features[place], self.labels[place] = features, labels
        self.pointer = int(place[-1] + 1) % len(self.labels)

    def state_dict(self):
        return dict(features=self.features.copy(), labels=self.labels.copy(), pointer=self.pointer)

    def load_state_dict(self, state):
        self.features[...] = state["features"]
        self.labels[...] = state["labels"]
        self.pointer = state["pointer"]


net, memory = build(CONFIG["model"]), build(CONFIG["memory"])
opt = nn.Adam(net.trainable_params(), CONFIG["optim"]["lr"])


def contrastive(x, bank, same, valid):
    z = net(x)
    d2 = ((z.expand_dims(1) - bank.expand_dims(0)) ** 2).sum(-1)
    pair = same * d2 + (1 - same) * ops.relu(1.0 - d2)
    return (pair * valid).mean(), z


vg = ms.value_and_grad(contrastive, None, net.trainable_params(), has_aux=True)
r = np.random.RandomState(CONFIG["seed"])
centers = r.randn(3, 6)
rows = []
for _ in range(8):
    t = r.randint(0, 3, 6)
    rows.append(((centers[t] + 0.4 * r.randn(6, 6)).astype(np.float32), t))

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches, memory=memory)
    manager.restore(state)
    for x, t in batches:
        if not memory.ready:
            memory.enqueue(net(ms.Tensor(x)).asnumpy(), t)
        same = (t[:, None] == memory.labels[None]).astype(np.float32)
        valid = np.repeat((memory.labels >= 0)[None], len(t), 0).astype(np.float32)
        (loss, z), grads = vg(*map(ms.Tensor, (x, memory.features.copy(), same, valid)))
        opt(grads)
        memory.enqueue(z.asnumpy(), t)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
