"""Nothing is wrong with it: one's own loop over one iterator, which the state positions."""

import mindspore as ms
from tiny import Net, data, optimizer_of

import ckptkit as ck

EPOCHS = 4


def main():
    ms.set_seed(11)
    net, dataset = Net(), data().batch(4)
    cell = ck.AccumulationTrainCell(net, optimizer_of(net), accumulation_steps=2)
    with ck.CheckpointManager("runs/mine") as manager:
        state = ck.StateManager(cell, dataset)
        point = manager.restore(state)
        batches = dataset.create_tuple_iterator(num_epochs=EPOCHS)
        state.iterator_made()
        for _ in range(point.epoch, EPOCHS):
            for x, y in batches:
                cell(x, y)
                manager.step(state)


main()
