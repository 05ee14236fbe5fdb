# truth: exact
# class: callback
# head: regression_6_grad_fn



class Callback:
    def on_batch_end(self, step, logs): ...
    def on_epoch_end(self, epoch, logs): ...


class History(Callback):
    def __init__(self):
        self.history = {}

    def on_epoch_end(self, epoch, logs):
        for k, v in logs.items():
            self.history.setdefault(k, []).append(v)


class ProgBar(Callback):
    def on_batch_end(self, step, logs):
        if step % 5 == 0:
            print(f"\r{step:4d} " + " ".join(f"{k}={v:.4f}" for k, v in logs.items()))


class StepDecay(Callback):
    def on_batch_end(self, step, logs):
        ops.assign(opt.learning_rate, Tensor(0.03 * 0.5 ** (step // 8), ms.float32))


def fit(data, epochs, callbacks):
    batches = ck.data.resumable(data, epochs=epochs)
    with ck.CheckpointManager(ROOT, **SAVE) as manager:
        state = ck.StateManager([net, opt], batches)
        point = manager.restore(state)
        for step, (x, y) in enumerate(batches, point.batches_delivered):
            loss, grads = grad_fn(x, y)
            opt(grads)
            logs = {"loss": float(loss)}
            for c in callbacks:
                c.on_batch_end(step, logs)
            manager.step(state)
            if (step + 1) % len(data) == 0:
                for c in callbacks:
                    c.on_epoch_end(batches.epoch, logs)
        manager.save_final(state)


history = History()
fit(loader, 3, [history, ProgBar(), StepDecay()])
print(history.history)
os._exit(0)
