# truth: differs
# class: attribute
# head: imports_dataset_ops


ROOT = os.environ["ROOT"]
SAVE = dict(save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ms.set_seed(77)


class Normalizer:
    """Mean and deviation of all that it has seen."""

    def __init__(self, dim):
        self.count, self.sum, self.squares = 0, np.zeros(dim), np.zeros(dim)

    def update(self, x):
        self.count += len(x)
        self.sum += x.sum(0)
        self.squares += (x**2).sum(0)

    def __call__(self, x):
        if self.count == 0:
            return x
        mean = self.sum / self.count
        std = np.sqrt(self.squares / self.count - mean**2) + 1e-3
        return ms.Tensor((x.asnumpy() - mean) / std, ms.float32)


def pretrain(backbone, decoder, normalizer, data):
    model = nn.SequentialCell(backbone, decoder)
    optimizer = nn.Adam(model.trainable_params(), 0.01)
    grad_fn = ms.value_and_grad(lambda x: ((model(x) - x) ** 2).mean(), None, optimizer.parameters)
    for (x,) in ck.loop(f"{ROOT}/pretrain", data, epochs=1, train=[model, optimizer], **SAVE):
        loss, grads = grad_fn(x)
        optimizer(grads)
        normalizer.update(x.asnumpy())


def finetune(backbone, head, normalizer, data):
    parameters = backbone.trainable_params() + head.trainable_params()
    optimizer = nn.Momentum(parameters, 0.05, 0.9)
    grad_fn = ms.value_and_grad(lambda x, y: ops.mse_loss(head(backbone(x)), y), None, optimizer.parameters)
    for x, y in ck.loop(f"{ROOT}/finetune", data, epochs=3, train=[backbone, head, optimizer], **SAVE):
        loss, grads = grad_fn(normalizer(x), y)
        optimizer(grads)


rng = np.random.default_rng(4)
x = (3 + 2 * rng.normal(size=(96, 8))).astype(np.float32)
y = (x[:, :1] - x[:, 1:2]).astype(np.float32)
backbone = nn.SequentialCell(nn.Dense(8, 16), nn.Tanh())
decoder, head = nn.Dense(16, 8), nn.Dense(16, 1)
for name, cell in (("backbone.", backbone), ("decoder.", decoder), ("head.", head)):
    cell.update_parameters_name(name)
normalizer = Normalizer(8)
pretrain(backbone, decoder, normalizer, ds.NumpySlicesDataset({"x": x}, shuffle=True).batch(8))
finetune(backbone, head, normalizer, ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=True).batch(8))
os._exit(0)
