# truth: exact
# class: callback
# head: graph_callback_dataset_ops
# A callback asks for the stop at step 27 of the run, by the number of the step; on_save collects reports of the saves, which are summed up at the end. GRAPH, K = 2.

ms.set_seed(4408)


class MaxSteps(Callback):
    """as max_steps of other trainers: epochs are only an upper limit; the rate falls linearly to a tenth"""

    def __init__(self, optimizer, base, max_steps):
        super().__init__()
        self.optimizer, self.base, self.max_steps = optimizer, base, max_steps
        self.seen = 0

    def on_train_step_end(self, run_context):
        cb = run_context.original_args()
        self.seen += 1
        left = 1 - cb.cur_step_num / self.max_steps
        ops.assign(self.optimizer.learning_rate, ms.Tensor(self.base * (0.1 + 0.9 * max(0.0, left)), ms.float32))
        if cb.cur_step_num >= self.max_steps:
            run_context.request_stop()

    def on_train_end(self, run_context):
        print(f"{self.seen} steps in this start")


reports = []
r = np.random.RandomState(8)
x = r.randn(48, 4).astype(np.float32)
y = (x[:, :1] * np.sign(x[:, 1:2])).astype(np.float32)
train = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=True).batch(6)
net = nn.SequentialCell(nn.Dense(4, 8), nn.Tanh(), nn.Dense(8, 1))
loss = nn.WithLossCell(net, nn.MSELoss())
opt = nn.Adam(loss.trainable_params(), 0.02)
cell = ck.AccumulationTrainCell(loss, opt, accumulation_steps=2, clip_norm=1.0)
ckpt = ck.CheckpointCallback(
    os.environ["ROOT"],
    save=ck.SaveEvery(micro_steps=4),
    saving=ck.Saving(when_busy="wait", on_save=reports.append),
)
ckpt.train(ms.Model(cell), 10, train, callbacks=[MaxSteps(opt, 0.02, max_steps=27)])
print(f"{len(reports)} saves; the newest is {reports[-1].checkpoint if reports else None}")
os._exit(0)
