# truth: differs
# class: attribute
# head: regression_8_dataset



class Bank(nn.Cell):
    def __init__(self):
        super().__init__()
        self.enc = nn.Dense(8, 4)
        self.bank = collections.deque(maxlen=4)

    def construct(self, x, y):
        z = self.enc(x)
        l = (z**2).mean() + (z.mean() - y.mean()) ** 2
        for b in self.bank:
            l = l + 0.1 * ((z - b) ** 2).mean()
        self.bank.append(ops.stop_gradient(z))
        return l


loss = Bank()
optimizer = nn.Adam(loss.trainable_params(), 0.01)
cell = ck.AccumulationTrainCell(loss, optimizer, 3)
ck.CheckpointCallback(ROOT, **SAVE).train(ms.Model(cell), 3, data)
os._exit(0)
