# truth: exact
# class: data
# head: accumulating_6_pynative
# A `map` computes in two processes.

def lowered(x):
    return x - 0.5


data = slices().map(lowered, ["x"], num_parallel_workers=2, python_multiprocessing=True)
ck.CheckpointCallback(ROOT, **SAVE).train(ms.Model(accumulating(Loss(Net()))), EPOCHS, data.batch(6), callbacks=[])
