# truth: differs
# class: attribute
# head: regression_8_train_step



log = logging.getLogger("train")
log.setLevel(logging.INFO)
log.propagate = False


class LossWatcher(logging.Handler):
    def __init__(self):
        super().__init__()
        self.history = []

    def emit(self, record):
        self.history.append(record.args[0])


watch = LossWatcher()
log.addHandler(watch)
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches)
    point = manager.restore(state)
    for x, y in batches:
        recent = watch.history[-10:]
        w = 1.0 if len(recent) < 10 else 0.5
        log.info("loss %.4f", float(train_step(x, y, w)))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
