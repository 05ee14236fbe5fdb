# truth: differs
# class: attribute
# head: regression_8_train_step



class Controller:
    def __init__(self):
        self.k, self.err, self.integral = 1.0, 0.0, 0.0

    def step(self, loss):
        self.err = loss - 0.5
        self.integral += self.err
        self.k = max(0.1, 1.0 - 0.1 * self.err - 0.02 * self.integral)

    def state_dict(self):
        return {"k": self.k, "err": self.err}

    def load_state_dict(self, s):
        self.k, self.err = s["k"], s["err"]


pid = Controller()
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches, pid=pid)
    point = manager.restore(state)
    for x, y in batches:
        pid.step(float(train_step(x, y, pid.k)))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
