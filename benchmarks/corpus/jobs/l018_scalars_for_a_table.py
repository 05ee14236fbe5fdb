# truth: exact, may be named
# class: attribute
# head: graph_callback_dataset_ops
# The same registry of scalars under f-string keys, written per step, read for a table at the end; GRAPH mode, K = 3, the rate follows the epoch.

ms.set_seed(4118)

SCALARS = {}


def scalar(tag, epoch, value):
    SCALARS.setdefault(f"{tag}/{epoch}", []).append(value)


class Record(Callback):
    def on_train_step_end(self, run_context):
        cb = run_context.original_args()
        scalar("loss", cb.cur_epoch_num, float(cb.net_outputs.asnumpy()))
        scalar("in_epoch", cb.cur_epoch_num, (cb.cur_step_num - 1) % cb.batch_num)

    def on_train_end(self, run_context):
        for name, values in sorted(SCALARS.items()):
            print(f"{name:12}", np.round(values, 3), f"mean {np.mean(values):.3f}")


class PerEpoch(Callback):
    def __init__(self, optimizer, rates):
        super().__init__()
        self.optimizer = optimizer
        self.rates = {f"epoch_{i}": rate for i, rate in enumerate(rates, 1)}

    def on_train_step_begin(self, run_context):
        rate = self.rates[f"epoch_{run_context.original_args().cur_epoch_num}"]
        ops.assign(self.optimizer.learning_rate, ms.Tensor(rate, ms.float32))


r = np.random.RandomState(18)
x = r.randn(48, 6).astype(np.float32)
y = np.cos(x.sum(1, keepdims=True)).astype(np.float32)
train = ds.NumpySlicesDataset((x, y), ["x", "y"]).batch(6)
net = nn.SequentialCell(nn.Dense(6, 8), nn.Tanh(), nn.Dense(8, 1))
opt = nn.Momentum(net.trainable_params(), 0.02, 0.9)
cell = ck.AccumulationTrainCell(nn.WithLossCell(net, nn.MSELoss()), opt, accumulation_steps=3)
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(ms.Model(cell), 3, train, callbacks=[Record(), PerEpoch(opt, (0.03, 0.02, 0.01))])
os._exit(0)
