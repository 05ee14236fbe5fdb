# truth: differs
# class: data
# head: accumulating_6_graph
# A thread reads ahead and hands on the state of the loader, which is ahead of the batches.

import queue


class Loader:
    def __init__(self):
        self.epoch, self.done = 0, 0

    def state_dict(self):
        return {"epoch": self.epoch, "done": self.done}

    def load_state_dict(self, state):
        self.epoch, self.done = state["epoch"], state["done"]

    def __iter__(self):
        order = np.random.default_rng(self.epoch).permutation(48).reshape(-1, 6)
        for chosen in order[self.done :]:
            self.done += 1
            yield ms.Tensor(X[chosen]), ms.Tensor(Y[chosen])
        self.epoch, self.done = self.epoch + 1, 0


class Prefetching:
    def __init__(self, loader):
        self.loader = loader

    def state_dict(self):
        return self.loader.state_dict()

    def load_state_dict(self, state):
        self.loader.load_state_dict(state)

    def __iter__(self):
        ready = queue.Queue(4)

        def read():
            for batch in self.loader:
                ready.put(batch)
            ready.put(None)

        threading.Thread(target=read, daemon=True).start()
        while (batch := ready.get()) is not None:
            yield batch


cell = accumulating(Loss(Net()))
for x, y in ck.loop(ROOT, Prefetching(Loader()), epochs=EPOCHS, train=cell, **SAVE):
    cell(x, y)
