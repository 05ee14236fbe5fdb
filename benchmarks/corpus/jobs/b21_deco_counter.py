# truth: refused
# class: iterator
# head: regression_8_train_step



def every(n):
    def deco(fn):
        calls = itertools.count(1)

        @functools.wraps(fn)
        def wrapped(*a, **k):
            if next(calls) % n == 0:
                return fn(*a, **k)

        return wrapped

    return deco


@every(6)
def decay():
    ops.assign(optimizer.learning_rate, optimizer.learning_rate * 0.5)


batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches)
    point = manager.restore(state)
    for x, y in batches:
        train_step(x, y)
        decay()
        manager.step(state)
    manager.save_final(state)
os._exit(0)
