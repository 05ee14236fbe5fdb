# truth: differs
# class: variable
# head: accumulating_6_graph
# The script ends by `sys.exit` once enough losses were too high; a plain variable counts them.

import sys


def train():
    cell = accumulating(Loss(Net()))
    bad = 0
    for x, y in ck.loop(ROOT, slices().batch(6), epochs=EPOCHS, train=cell, **SAVE):
        bad += float(cell(x, y)) > 0.01
        if bad == 26:
            sys.exit(0)


train()
