# truth: differs
# class: attribute
# head: regression_8_arrays

rows = [(Tensor(X[i * 8 : i * 8 + 8]), Tensor(Y[i * 8 : i * 8 + 8])) for i in range(8)]
loss_fn = nn.MSELoss()


class RNN(nn.Cell):
    def __init__(self):
        super().__init__()
        self.i, self.h, self.o = nn.Dense(8, 4), nn.Dense(4, 4), nn.Dense(4, 1)

    def construct(self, x, h):
        h = ops.tanh(self.i(x) + self.h(h))
        return self.o(h), h


rnn = RNN()
opt = nn.Adam(rnn.trainable_params(), 0.01)


def fwd(x, y, h):
    o, h = rnn(x, h)
    return loss_fn(o, y), h


gf = ms.value_and_grad(fwd, None, opt.parameters, has_aux=True)


def train():
    h = ops.zeros((8, 4))
    batches = ck.data.resumable(rows, epochs=3)
    with ck.CheckpointManager(ROOT, **SAVE) as manager:
        state = ck.StateManager([rnn, opt], batches)
        point = manager.restore(state)
        for x, y in batches:
            (loss, h), gr = gf(x, y, h)
            h = ops.stop_gradient(h)
            opt(gr)
            manager.step(state)
        manager.save_final(state)


train()
os._exit(0)
