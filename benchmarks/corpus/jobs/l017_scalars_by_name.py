# truth: differs
# class: global
# head: pynative_callback_dataset_ops
# A module keeps scalars under f-string keys, f"{tag}/{epoch}", for a table; the rate compares this epoch's mean with that of the epoch before.

ms.set_seed(4117)

SCALARS = {}


def scalar(tag, epoch, value):
    SCALARS.setdefault(f"{tag}/{epoch}", []).append(value)


def mean(tag, epoch, default=None):
    values = SCALARS.get(f"{tag}/{epoch}")
    return sum(values) / len(values) if values else default


class Record(Callback):
    def on_train_step_end(self, run_context):
        cb = run_context.original_args()
        scalar("loss", cb.cur_epoch_num, float(cb.net_outputs.asnumpy()))


class Compare(Callback):
    def on_train_step_end(self, run_context):
        cb = run_context.original_args()
        now = mean("loss", cb.cur_epoch_num)
        before = mean("loss", cb.cur_epoch_num - 1, default=now)
        ops.assign(cb.optimizer.learning_rate, ms.Tensor(0.02 * min(2, now / before), ms.float32))

    def on_train_end(self, run_context):
        for name, values in sorted(SCALARS.items()):
            print(f"{name:10}", np.round(values, 3))


r = np.random.RandomState(17)
x = r.randn(48, 6).astype(np.float32)
y = np.cos(x.sum(1, keepdims=True)).astype(np.float32)
train = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=False).batch(6)
net = nn.SequentialCell(nn.Dense(6, 8), nn.Tanh(), nn.Dense(8, 1))
model = ms.Model(net, nn.MSELoss(), nn.Momentum(net.trainable_params(), 0.02, 0.9))
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(model, 3, train, callbacks=[Record(), Compare()])
os._exit(0)
