# truth: differs
# class: attribute
# head: regression_8_train_step



class Temperature:
    value = 1.0

    @classmethod
    def anneal(cls):
        cls.value = max(cls.value * 0.92, 0.1)


batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches)
    point = manager.restore(state)
    for x, y in batches:
        train_step(x / Temperature.value, y)
        Temperature.anneal()
        manager.step(state)
    manager.save_final(state)
os._exit(0)
