# truth: differs
# class: attribute
# head: pynative_callback_dataset_ops
# A leaderboard of steps, sorted through __lt__ of its slotted entries, is printed per epoch; a property of it (the median entry) sets the rate.

ms.set_seed(4105)


class Entry:
    __slots__ = ("step", "loss")

    def __init__(self, step, loss):
        self.step, self.loss = step, loss

    def __lt__(self, other):
        return self.loss < other.loss


class Leaderboard:
    def __init__(self):
        self.entries = []

    def add(self, entry):
        self.entries = sorted([*self.entries, entry])

    @property
    def typical(self):
        return self.entries[len(self.entries) // 2].loss

    def __str__(self):
        return ", ".join(f"#{e.step} {e.loss:.3f}" for e in self.entries[:3])


class Board(Callback):
    def __init__(self, rate=0.02):
        super().__init__()
        self.rate, self.board = rate, Leaderboard()

    def on_train_step_end(self, run_context):
        cb = run_context.original_args()
        loss = float(cb.net_outputs.asnumpy())
        self.board.add(Entry(cb.cur_step_num, loss))
        factor = np.clip(self.board.typical / (loss + 1e-3), 0.2, 3.0)
        ops.assign(cb.optimizer.learning_rate, ms.Tensor(self.rate * factor, ms.float32))

    def on_train_epoch_end(self, run_context):
        print("best so far:", self.board)


r = np.random.RandomState(5)
x = r.randn(48, 6).astype(np.float32)
y = np.sin(x[:, :1] + x[:, 3:4]).astype(np.float32)
train = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=False).batch(6)
net = nn.SequentialCell(nn.Dense(6, 8), nn.Tanh(), nn.Dense(8, 1))
model = ms.Model(net, nn.MSELoss(), nn.Momentum(net.trainable_params(), 0.02, 0.8))
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(model, 3, train, callbacks=[Board()])
os._exit(0)
