# truth: exact
# class: callback
# head: graph_callback_dataset_ops
# Active learning in GRAPH mode: which rows have labels is a Parameter of the loss, a mask; every fourth step a callback adds the least certain rows to it.

ms.set_seed(4353)


class LabelledLoss(nn.Cell):
    def __init__(self, body, rows, first):
        super().__init__()
        self.body = body
        mask = np.zeros(rows, np.float32)
        mask[:first] = 1
        self.labelled = ms.Parameter(ms.Tensor(mask), name="labelled", requires_grad=False)

    def construct(self, number, x, y):
        weight = ops.gather(self.labelled, number, 0)
        error = ((self.body(x) - y) ** 2).sum(1)
        return (error * weight).sum() / (weight.sum() + 1.0)


class Oracle(Callback):
    def __init__(self, loss, pool, every, amount):
        super().__init__()
        self.loss, self.pool, self.every, self.amount = loss, ms.Tensor(pool), every, amount
        self.asked = []

    def on_train_step_end(self, run_context):
        cb = run_context.original_args()
        if cb.cur_step_num % self.every:
            return
        mask = self.loss.labelled.asnumpy().copy()
        certainty = np.abs(self.loss.body(self.pool).asnumpy()[:, 0])
        unknown = np.flatnonzero(mask == 0)
        chosen = unknown[np.argsort(certainty[unknown], kind="stable")[: self.amount]]
        mask[chosen] = 1
        ops.assign(self.loss.labelled, ms.Tensor(mask))
        self.asked.extend(chosen.tolist())

    def on_train_end(self, run_context):
        print(f"asked for {len(self.asked)} labels in this start; known are {int(self.loss.labelled.asnumpy().sum())}")


r = np.random.RandomState(53)
x = r.randn(48, 4).astype(np.float32)
y = np.sign(x[:, :1] + 0.5 * x[:, 1:2] ** 2 - 0.5).astype(np.float32)
numbers = np.arange(48, dtype=np.int32)
data = ds.NumpySlicesDataset((numbers, x, y), ["number", "x", "y"], shuffle=True).batch(6)
loss = LabelledLoss(nn.SequentialCell(nn.Dense(4, 8), nn.Tanh(), nn.Dense(8, 1)), 48, first=12)
cell = ck.AccumulationTrainCell(loss, nn.Momentum(loss.trainable_params(), 0.1, 0.8), accumulation_steps=2)
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(ms.Model(cell), 3, data, callbacks=[Oracle(loss, x, every=4, amount=4)])
os._exit(0)
