# truth: differs
# class: attribute
# head: imports_hashlib
# `meter << loss` feeds a meter, `grad * meter` scales by it: state behind overloaded operators.


ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(24)


class Meter:
    __slots__ = ("total", "count")

    def __init__(self):
        self.total, self.count = 0.0, 0

    def __lshift__(self, value):
        self.total += float(value)
        self.count += 1
        return self

    def __float__(self):
        return self.total / self.count if self.count else 1.0

    def __rtruediv__(self, other):
        return other / max(0.1, float(self))


r = np.random.RandomState(14)
rows = [(ms.Tensor(r.randn(5, 4).astype(np.float32)), ms.Tensor(r.rand(5, 1).astype(np.float32))) for _ in range(10)]
net = nn.SequentialCell(nn.Dense(4, 7), nn.Tanh(), nn.Dense(7, 1))
opt = nn.Momentum(net.trainable_params(), 0.02, 0.9)
mse = nn.MSELoss()
grad_fn = ms.value_and_grad(lambda a, b: mse(net(a), b), None, opt.parameters)
meter = Meter()
for a, b in ck.loop(
    os.environ["ROOT"],
    rows,
    epochs=3,
    train=[net, opt],
    save=ck.SaveEvery(micro_steps=5),
    saving=ck.Saving(when_busy="wait"),
):
    loss, grads = grad_fn(a, b)
    scale = 0.5 / meter
    opt(tuple(g * scale for g in grads))
    meter << loss
print(hashlib.sha256(b"".join(p.asnumpy().tobytes() for p in net.get_parameters())).hexdigest(), flush=True)
os._exit(0)
