# truth: differs
# class: attribute
# head: regression_8_train_step



@dataclasses.dataclass(frozen=True)
class S:
    lr: float = 0.01
    bad: int = 0
    best: float = float("inf")


def plateau(s, loss):
    if loss < s.best:
        return dataclasses.replace(s, best=loss, bad=0)
    s = dataclasses.replace(s, bad=s.bad + 1)
    return dataclasses.replace(s, lr=s.lr * 0.5, bad=0) if s.bad >= 2 else s


def main():
    s = S()
    batches = ck.data.resumable(rows, epochs=3)
    with ck.CheckpointManager(ROOT, **SAVE) as manager:
        state = ck.StateManager([net, optimizer], batches)
        point = manager.restore(state)
        for x, y in batches:
            ops.assign(optimizer.learning_rate, Tensor(s.lr, ms.float32))
            s = plateau(s, float(train_step(x, y)))
            manager.step(state)
        manager.save_final(state)


main()
os._exit(0)
