# truth: differs
# class: callback
# head: graph_callback_dataset_ops
# A callback raises the margin of the loss at the begin of each epoch; in GRAPH mode the graph has the margin of the process's first call, and a resumed process compiles with another one.

ms.set_seed(3514)


class TripletLoss(nn.Cell):
    def __init__(self, network):
        super().__init__(auto_prefix=False)
        self.network = network
        self.margin = 0.2

    def construct(self, anchor, positive, negative):
        a, p, n = self.network(anchor), self.network(positive), self.network(negative)
        near = ((a - p) ** 2).sum(-1)
        far = ((a - n) ** 2).sum(-1)
        return ops.relu(near - far + self.margin).mean()


class MarginCurriculum(Callback):
    def __init__(self, loss, first, more):
        super().__init__()
        self.loss, self.first, self.more = loss, first, more

    def on_train_epoch_begin(self, run_context):
        epoch = run_context.original_args().cur_epoch_num
        self.loss.margin = self.first + self.more * (epoch - 1)


r = np.random.RandomState(14)
centres = r.randn(4, 6)
of = r.randint(0, 4, 54)
other = (of + r.randint(1, 4, 54)) % 4
anchor, positive, negative = ((centres[c] + 0.7 * r.randn(54, 6)).astype(np.float32) for c in (of, of, other))
train = ds.NumpySlicesDataset((anchor, positive, negative), ["a", "p", "n"], shuffle=True).batch(6)
loss = TripletLoss(nn.SequentialCell(nn.Dense(6, 8), nn.Tanh(), nn.Dense(8, 3)))
step = nn.TrainOneStepCell(loss, nn.Adam(loss.trainable_params(), 0.02))

ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(ms.Model(step), 4, train, callbacks=[MarginCurriculum(loss, 0.2, 0.4)])
os._exit(0)
