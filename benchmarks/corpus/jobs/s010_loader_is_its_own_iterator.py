# truth: exact
# class: data
# head: accumulating_6_graph
# A loader is its own iterator and begins anew in `__iter__`.

class Loader:
    def __init__(self):
        self.place = 0
        self.rows = [(ms.Tensor(X[i : i + 6]), ms.Tensor(Y[i : i + 6])) for i in range(0, 48, 6)]

    def __iter__(self):
        self.place = 0
        return self

    def __next__(self):
        if self.place == len(self.rows):
            raise StopIteration
        self.place += 1
        return self.rows[self.place - 1]


cell = accumulating(Loss(Net()))
for x, y in ck.loop(ROOT, Loader(), epochs=EPOCHS, train=cell, **SAVE):
    cell(x, y)
