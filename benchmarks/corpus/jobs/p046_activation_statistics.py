# truth: differs
# class: attribute
# head: pynative_dataset_ops
# A forward hook follows the mean activation of a layer; the layer is penalized for moving away from it.

ms.set_seed(146)


def follow(cell, decay=0.95):
    statistics = {"mean": None}

    def hook(cell, inputs, output):
        batch = ops.stop_gradient(output.mean(0)).asnumpy()
        old = statistics["mean"]
        statistics["mean"] = batch if old is None else decay * old + (1 - decay) * batch

    cell.register_forward_hook(hook)
    return statistics


class AnchoredLoss(nn.Cell):
    def __init__(self, body, head):
        super().__init__()
        self.body, self.head = body, head
        self.followed = follow(body)

    def construct(self, x, y):
        h = self.body(x)
        anchor = ms.Tensor(self.followed["mean"])
        return ((self.head(h) - y) ** 2).mean() + 0.5 * ((h.mean(0) - anchor) ** 2).sum()


r = np.random.RandomState(48)
x = r.randn(60, 6).astype(np.float32)
y = (x[:, :1] ** 2 - x[:, 1:2]).astype(np.float32)
train = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=True).batch(6)
loss = AnchoredLoss(nn.SequentialCell(nn.Dense(6, 12), nn.Tanh()), nn.Dense(12, 1))
step = nn.TrainOneStepCell(loss, nn.Momentum(loss.trainable_params(), 0.03, 0.9))

ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(ms.Model(step), 4, train)
os._exit(0)
