# truth: exact
# class: data
# head: accumulating_6_pynative
# Batches are dictionaries.

rows = [{"x": ms.Tensor(X[i : i + 6]), "y": ms.Tensor(Y[i : i + 6])} for i in range(0, 48, 6)]
cell = accumulating(Loss(Net()))
for batch in ck.loop(ROOT, rows, epochs=EPOCHS, train=cell, **SAVE):
    cell(batch["x"], batch["y"])
