"""Its curriculum scales the inputs by a generator, which no checkpoint can hold."""

import mindspore as ms
from tiny import Net, data, optimizer_of

import ckptkit as ck

EPOCHS = 4


class Curriculum:
    def __init__(self):
        self.levels = (level / 40 for level in range(40))

    def harder(self):
        return next(self.levels)


def main():
    ms.set_seed(11)
    net, dataset, curriculum = Net(), data().batch(4), Curriculum()
    cell = ck.AccumulationTrainCell(net, optimizer_of(net), accumulation_steps=2)
    with ck.CheckpointManager("runs/mine") as manager:
        state = ck.StateManager(cell, dataset)
        point = manager.restore(state)
        batches = dataset.create_tuple_iterator(num_epochs=EPOCHS)
        state.iterator_made()
        for _ in range(point.epoch, EPOCHS):
            for x, y in batches:
                cell(x * curriculum.harder(), y)
                manager.step(state)


main()
