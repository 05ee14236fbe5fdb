# truth: differs
# class: callback
# head: pynative_callback_dataset_ops
# Callbacks are built from a config by a registry: once for the list of callbacks and once more for stateful=, so the object that is stored is not the one that trains.

ms.set_seed(4402)

REGISTRY = {}


def register(cls):
    REGISTRY[cls.__name__] = cls
    return cls


def build(spec):
    spec = dict(spec)
    return REGISTRY[spec.pop("type")](**spec)


@register
class EpochPrinter(Callback):
    def on_train_epoch_end(self, run_context):
        cb = run_context.original_args()
        print(f"epoch {cb.cur_epoch_num}: {float(cb.net_outputs.asnumpy()):.4f}")


@register
class TrendRate(Callback):
    """the rate follows the ratio of a fast and a slow average of the loss"""

    def __init__(self, base, fast, slow):
        super().__init__()
        self.base, self.decays = base, (fast, slow)
        self.averages = None

    def on_train_step_end(self, run_context):
        cb = run_context.original_args()
        loss = float(cb.net_outputs.asnumpy())
        before = self.averages or (loss, loss)
        self.averages = tuple(d * a + (1 - d) * loss for d, a in zip(self.decays, before))
        rate = self.base * min(2.0, self.averages[1] / self.averages[0])
        ops.assign(cb.optimizer.learning_rate, ms.Tensor(rate, ms.float32))

    def state_dict(self):
        return {"averages": self.averages}

    def load_state_dict(self, state):
        self.averages = None if state["averages"] is None else tuple(state["averages"])


HOOKS = [{"type": "EpochPrinter"}, {"type": "TrendRate", "base": 0.02, "fast": 0.6, "slow": 0.95}]

r = np.random.RandomState(2)
x = r.randn(48, 4).astype(np.float32)
y = (np.sin(2 * x[:, :1]) + 0.3 * x[:, 1:2]).astype(np.float32)
train = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=True).batch(6)
net = nn.SequentialCell(nn.Dense(4, 8), nn.Tanh(), nn.Dense(8, 1))
model = ms.Model(net, nn.MSELoss(), nn.Adam(net.trainable_params(), 0.02))
ckpt = ck.CheckpointCallback(
    os.environ["ROOT"],
    save=ck.SaveEvery(micro_steps=5),
    saving=ck.Saving(when_busy="wait"),
    stateful={h["type"]: build(h) for h in HOOKS if hasattr(REGISTRY[h["type"]], "state_dict")},
)
ckpt.train(model, 3, train, callbacks=[build(h) for h in HOOKS])
os._exit(0)
