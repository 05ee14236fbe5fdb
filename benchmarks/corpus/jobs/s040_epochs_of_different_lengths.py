# truth: exact
# class: data
# head: accumulating_6_pynative
# Batches grow with the epochs, so that epochs have different lengths.

class Loader:
    def __init__(self):
        self.epoch = 0

    def __iter__(self):
        self.epoch += 1
        size = 4 + self.epoch
        for first in range(0, 48 - size, size):
            yield ms.Tensor(X[first : first + size]), ms.Tensor(Y[first : first + size])


cell = accumulating(Loss(Net()))
for x, y in ck.loop(ROOT, Loader(), epochs=EPOCHS, train=cell, **SAVE):
    cell(x, y)
