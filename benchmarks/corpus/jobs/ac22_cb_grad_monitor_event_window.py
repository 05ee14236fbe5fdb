# truth: differs
# class: callback
# head: regression_6_graph_dataset

net = nn.SequentialCell(nn.Dense(6, 12), nn.Tanh(), nn.Dense(12, 1))
opt = nn.Momentum(net.trainable_params(), 0.05, 0.9)
model = ms.Model(net, nn.MSELoss(), opt)


class Trend(ms.Callback):
    def __init__(self, size):
        super().__init__()
        self.__window = np.full(size, np.nan)

    @property
    def rising(self):
        w = self.__window
        return not np.isnan(w).any() and w[-1] > w.mean()

    def on_train_step_end(self, run_context):
        params = run_context.original_args()
        self.__window = np.roll(self.__window, -1)
        self.__window[-1] = float(params.net_outputs)
        rate = 0.02 if self.rising else 0.05
        ops.assign(params.optimizer.learning_rate, Tensor(rate, ms.float32))


ck.CheckpointCallback(ROOT, **SAVE).train(model, 3, train_data, callbacks=[Trend(6)])
os._exit(0)
