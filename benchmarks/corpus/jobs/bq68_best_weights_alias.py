# truth: differs
# class: attribute
# head: root_dataset_tensor_ops

SAVE = dict(save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ms.set_seed(3)
rng = np.random.default_rng(1)
x = rng.normal(size=(96, 6)).astype(np.float32)
y = (x[:, :1] * x[:, 1:2] + 0.2 * rng.normal(size=(96, 1))).astype(np.float32)
data = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=True).batch(8)
net = nn.SequentialCell(nn.Dense(6, 12), nn.Tanh(), nn.Dense(12, 1))
opt = nn.Adam(net.trainable_params(), 0.02)
grad_fn = ms.value_and_grad(lambda x, y: ops.mse_loss(net(x), y), None, opt.parameters)


class Best:
    """Remembers weights without a copy, so that it follows them."""

    def __init__(self, net):
        self.loss, self.weights = float("inf"), {p.name: p.asnumpy() for p in net.get_parameters()}

    def see(self, net, loss):
        if loss < self.loss:
            self.loss, self.weights = loss, {p.name: p.asnumpy() for p in net.get_parameters()}
        elif loss > 2 * self.loss:
            for p in net.get_parameters():
                ops.assign(p, Tensor(0.5 * (p.asnumpy() + self.weights[p.name])))

    def state_dict(self):
        return {"loss": self.loss, "weights": self.weights}

    def load_state_dict(self, state):
        self.loss, self.weights = state["loss"], state["weights"]


best = Best(net)
for x, y in ck.loop(ROOT, data, epochs=3, train=[net, opt], stateful={"best": best}, **SAVE):
    loss, grads = grad_fn(x, y)
    opt(grads)
    best.see(net, float(loss))
os._exit(0)
