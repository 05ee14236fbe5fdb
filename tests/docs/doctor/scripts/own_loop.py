"""A loop over one iterator, which the state positions; ``restarted``, over one for each epoch, which it does not."""

import sys

import mindspore as ms
from tiny import SIZE, Net, data, optimizer_of

import ckptkit as ck

EPOCHS = 4


def main(*, restarted):
    ms.set_seed(11)
    net, dataset = Net(), data().batch(4)
    cell = ck.AccumulationTrainCell(net, optimizer_of(net), accumulation_steps=2)
    with ck.CheckpointManager("runs/mine") as manager:
        state = ck.StateManager(cell, None if restarted else dataset)
        point = manager.restore(state)
        batches = dataset.create_tuple_iterator(num_epochs=EPOCHS)
        if not restarted:
            state.iterator_made()
        for _ in range(point.batches_delivered // SIZE, EPOCHS):
            for x, y in dataset.create_tuple_iterator(num_epochs=1) if restarted else batches:
                cell(x, y)
                manager.step(state)


main(restarted="restarted" in sys.argv)
