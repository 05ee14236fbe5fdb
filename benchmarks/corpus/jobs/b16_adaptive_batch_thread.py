# truth: differs
# class: attribute
# head: regression_8_train_step



class StatsThread(threading.Thread):
    def __init__(self):
        super().__init__(daemon=True)
        self.q, self.done = queue.Queue(), queue.Queue()
        self.mean, self.n = 0.0, 0
        self.start()

    def run(self):
        while True:
            v = self.q.get()
            self.n += 1
            self.mean += (v - self.mean) / self.n
            self.done.put(self.mean)


stats = StatsThread()
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches)
    point = manager.restore(state)
    for x, y in batches:
        w = 1.0 / (1.0 + stats.mean)
        loss = train_step(x, y, w)
        stats.q.put(float(loss))
        stats.done.get()
        manager.step(state)
    manager.save_final(state)
os._exit(0)
