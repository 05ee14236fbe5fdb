# truth: exact
# class: other
# head: accumulating_6_pynative
# SciPy computes from the input alone.

from scipy import ndimage

cell = accumulating(Loss(Net()))
for x, y in ck.loop(ROOT, slices().batch(6), epochs=EPOCHS, train=cell, **SAVE):
    cell(ms.Tensor(ndimage.gaussian_filter1d(x.asnumpy(), 0.5)), y)
