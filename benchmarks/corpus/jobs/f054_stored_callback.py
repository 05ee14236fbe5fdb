# truth: exact
# class: callback
# head: imports_monitor_callback_dataset_ops
# A callback that anneals the rate by the loss's trend has state_dict and load_state_dict and is given as stateful=.


ms.set_seed(81)
ms.set_context(mode=ms.GRAPH_MODE)


class TrendAnnealing(Callback):
    def __init__(self, optimizer, up=1.02, down=0.9):
        super().__init__()
        self.optimizer = optimizer
        self.up, self.down = up, down
        self.fast = self.slow = None
        self.rate = 0.05

    def on_train_step_end(self, run_context):
        loss = float(run_context.original_args().net_outputs.asnumpy())
        self.fast = loss if self.fast is None else 0.5 * self.fast + 0.5 * loss
        self.slow = loss if self.slow is None else 0.9 * self.slow + 0.1 * loss
        self.rate *= self.up if self.fast < self.slow else self.down
        ops.assign(self.optimizer.learning_rate, ms.Tensor(self.rate, ms.float32))

    def state_dict(self):
        return {"fast": self.fast, "slow": self.slow, "rate": self.rate}

    def load_state_dict(self, state):
        self.fast, self.slow, self.rate = state["fast"], state["slow"], state["rate"]


r = np.random.RandomState(81)
signals = r.randn(64, 1, 10).astype(np.float32)
classes = (signals[:, 0, :5].sum(1) > signals[:, 0, 5:].sum(1)).astype(np.int32)
data = ds.NumpySlicesDataset((signals, classes), ["signal", "class"], shuffle=True).batch(8)


class SignalNet(nn.Cell):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(1, 4, 3)
        self.fc = nn.Dense(40, 2)

    def construct(self, signal, label):
        h = ops.relu(self.conv(signal))
        return ops.cross_entropy(self.fc(h.reshape(h.shape[0], -1)), label)


net = SignalNet()
opt = nn.Momentum(net.trainable_params(), 0.05, 0.9)
trend = TrendAnnealing(opt)
ckpt = ck.CheckpointCallback(
    os.environ["ROOT"],
    save=ck.SaveEvery(micro_steps=5),
    saving=ck.Saving(when_busy="wait"),
    stateful={"trend": trend},
)
ckpt.train(ms.Model(ck.AccumulationTrainCell(net, opt, 1)), 3, data, callbacks=[LossMonitor(8), trend])
os._exit(0)
