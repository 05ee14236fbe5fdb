# truth: exact
# class: attribute
# head: pynative_hashlib_dataset_ops
# The backbone is in evaluation mode and frozen for the first batches of a run, and trains from a certain number on.

ms.set_seed(65)


class Classifier(nn.Cell):
    def __init__(self):
        super().__init__()
        self.backbone = nn.SequentialCell(nn.Dense(6, 12), nn.BatchNorm1d(12), nn.ReLU())
        self.head = nn.Dense(12, 2)

    def construct(self, x):
        return self.head(self.backbone(x))


r = np.random.RandomState(55)
labels = r.randint(0, 2, 64).astype(np.int32)
x = (r.randn(64, 6) + labels[:, None]).astype(np.float32)
data = ds.NumpySlicesDataset((x, labels), ["x", "y"], shuffle=True).batch(8)
net = Classifier().set_train()
opt = nn.Adam(net.trainable_params(), 0.01)
ce = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
grad_fn = ms.value_and_grad(lambda a, b: ce(net(a), b), None, opt.parameters)
inside = {p.name for p in net.backbone.trainable_params()}
run = ck.loop(
    os.environ["ROOT"],
    data,
    epochs=4,
    train=[net, opt],
    save=ck.SaveEvery(micro_steps=5),
    saving=ck.Saving(when_busy="wait"),
)
for a, b in run:
    number = run.step
    frozen = number < 19
    net.backbone.set_train(not frozen)
    loss, grads = grad_fn(a, b)
    opt(tuple(ops.zeros_like(g) if frozen and p.name in inside else g for p, g in zip(opt.parameters, grads)))
print(hashlib.sha256(b"".join(p.asnumpy().tobytes() for p in net.get_parameters())).hexdigest(), flush=True)
os._exit(0)
