# truth: refused
# class: data
# head: accumulating_6_pynative
# A filter keeps samples by a draw, so that epochs have different lengths.

data = slices().filter(lambda y: bool(np.random.random() < 0.6), ["y"], num_parallel_workers=1)
EPOCHS = 8
ck.CheckpointCallback(ROOT, **SAVE).train(ms.Model(accumulating(Loss(Net()))), EPOCHS, data.batch(6), callbacks=[])
