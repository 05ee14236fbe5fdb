# truth: exact
# class: other
# head: accumulating_6_pynative
# SciPy computes from the input alone.

from scipy import ndimage

cell = accumulating(Loss(Net()))
batches = ck.data.resumable(slices().batch(6), EPOCHS)
state = ck.StateManager(cell, batches)
for number, (x, y) in ck.CheckpointManager(ROOT, **SAVE).loop(state):
    cell(ms.Tensor(ndimage.gaussian_filter1d(x.asnumpy(), 0.5)), y)
