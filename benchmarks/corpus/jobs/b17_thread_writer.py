# truth: exact
# class: outside
# head: regression_8_train_step



class Writer(threading.Thread):
    def __init__(self):
        super().__init__(daemon=True)
        self.q = queue.Queue()
        self.start()

    def run(self):
        while True:
            i, v = self.q.get()
            print(i, round(v, 4), flush=True)


writer = Writer()
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches)
    point = manager.restore(state)
    for i, (x, y) in enumerate(batches, point.batches_delivered):
        loss = train_step(x, y)
        writer.q.put((i, float(loss)))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
