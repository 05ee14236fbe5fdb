# truth: differs
# class: attribute
# head: accumulating_6_graph
# An attribute begins as one of the class and is set in the object by the first step.

class Trainer:
    temperature = 1.0

    def __init__(self, cell):
        self.cell = cell

    def train_one(self, x, y):
        loss = float(self.cell(x * self.temperature, y))
        self.temperature = 0.9 * self.temperature + 0.01 * loss


cell = accumulating(Loss(Net()))
trainer = Trainer(cell)
for x, y in ck.loop(ROOT, slices().batch(6), epochs=EPOCHS, train=cell, **SAVE):
    trainer.train_one(x, y)
