# truth: exact
# class: callback
# head: saving_pynative_dataset_parameter

rng0 = np.random.default_rng(21)
X = rng0.normal(size=(80, 6)).astype(np.float32)
Y = (np.abs(X).argmax(1) % 4).astype(np.int32)
train_data = ds.NumpySlicesDataset((X, Y), ["x", "y"], shuffle=True).batch(8)
net = nn.SequentialCell(nn.Dense(6, 12), nn.ReLU(), nn.Dense(12, 4))


class SmoothCE(nn.Cell):
    def __init__(self):
        super().__init__()
        self.smooth = 0.2

    def construct(self, logits, label):
        target = ops.one_hot(label, 4, Tensor(1.0), Tensor(0.0)) * (1 - self.smooth) + self.smooth / 4
        return -(target * ops.log_softmax(logits, -1)).sum(-1).mean()


loss_fn = SmoothCE()
opt = nn.Adam(net.trainable_params(), 0.01)
model = ms.Model(net, loss_fn, opt)


class Sharpen(ms.Callback):
    def on_train_epoch_begin(self, run_context):
        loss_fn.smooth = 0.2 / run_context.original_args().cur_epoch_num


ck.CheckpointCallback(ROOT, **SAVE).train(model, 3, train_data, callbacks=[Sharpen()])
os._exit(0)
