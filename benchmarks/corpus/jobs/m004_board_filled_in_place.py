# truth: exact
# class: callback
# head: graph_callback_dataset_ops
# Three callbacks share a blackboard, a subclass of dict, which is given in stateful= and whose load_state_dict fills it in place; GRAPH mode.

ms.set_seed(4304)


class Board(dict):
    def state_dict(self):
        return {"entries": dict(self)}

    def load_state_dict(self, state):
        self.clear()
        self.update(state["entries"])


class Measure(Callback):
    def __init__(self, board):
        super().__init__()
        self.board = board

    def on_train_step_end(self, run_context):
        loss = float(run_context.original_args().net_outputs.asnumpy())
        self.board["before"] = self.board.get("level", loss)
        self.board["level"] = 0.8 * self.board["before"] + 0.2 * loss


class Trend(Callback):
    def __init__(self, board):
        super().__init__()
        self.board = board

    def on_train_step_end(self, run_context):
        fall = self.board["before"] - self.board["level"]
        self.board["trend"] = 0.7 * self.board.get("trend", 0.0) + 0.3 * fall


class Steer(Callback):
    def __init__(self, board, base):
        super().__init__()
        self.board, self.base = board, base

    def on_train_step_end(self, run_context):
        rate = self.base * (1 + np.tanh(5 * self.board["trend"]))
        ops.assign(run_context.original_args().optimizer.learning_rate, ms.Tensor(float(rate), ms.float32))


r = np.random.RandomState(4)
x = r.randn(48, 5).astype(np.float32)
y = (x[:, :1] - x[:, 1:2] * x[:, 2:3]).astype(np.float32)
train = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=True).batch(6)
net = nn.SequentialCell(nn.Dense(5, 8), nn.Tanh(), nn.Dense(8, 1))
model = ms.Model(net, nn.MSELoss(), nn.Momentum(net.trainable_params(), 0.02, 0.9))
board = Board()
ckpt = ck.CheckpointCallback(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"), stateful={"board": board}
)
ckpt.train(model, 3, train, callbacks=[Measure(board), Trend(board), Steer(board, 0.02)])
os._exit(0)
