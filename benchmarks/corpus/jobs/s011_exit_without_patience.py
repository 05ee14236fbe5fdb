# truth: differs
# class: variable
# head: accumulating_6_graph
# The script ends by `sys.exit` once enough losses were too high; a plain variable counts them.

import sys


def train():
    cell = accumulating(Loss(Net()))
    batches = ck.data.resumable(slices().batch(6), EPOCHS)
    bad = 0
    for number, (x, y) in ck.CheckpointManager(ROOT, **SAVE).loop(ck.StateManager(cell, batches)):
        bad += float(cell(x, y)) > 0.01
        if bad == 26:
            sys.exit(0)


train()
