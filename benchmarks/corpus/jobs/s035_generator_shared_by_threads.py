# truth: refused
# class: random
# head: accumulating_6_graph
# Two threads of a `map` draw from one generator.

rng = np.random.default_rng(3)
data = slices().map(lambda x: x + rng.standard_normal(8).astype(np.float32), ["x"], num_parallel_workers=2)
ck.CheckpointCallback(ROOT, **SAVE).train(ms.Model(accumulating(Loss(Net()))), EPOCHS, data.batch(6), callbacks=[])
