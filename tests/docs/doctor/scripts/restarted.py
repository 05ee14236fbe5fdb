"""Its loop makes a new iterator for each epoch, so that a resumed epoch begins at its first batch again."""

import mindspore as ms
from tiny import SIZE, Net, data, optimizer_of

import ckptkit as ck

EPOCHS = 4


def main():
    ms.set_seed(11)
    net, dataset = Net(), data().batch(4)
    cell = ck.AccumulationTrainCell(net, optimizer_of(net), accumulation_steps=2)
    with ck.CheckpointManager("runs/mine") as manager:
        state = ck.StateManager(cell)
        point = manager.restore(state)
        for _ in range(point.batches_delivered // SIZE, EPOCHS):
            for x, y in dataset.create_tuple_iterator(num_epochs=1):
                cell(x, y)
                manager.step(state)


main()
