# truth: differs
# class: attribute
# head: regression_8_grad_fn



def train_step(x, y, w=1.0):
    loss, grads = grad_fn(x, y, w)
    optimizer(grads)
    return loss


from sortedcontainers import SortedKeyList


class PrioritizedReplay:
    def __init__(self, size):
        self.items = SortedKeyList(key=lambda t: -t[0])
        self.size = size

    def add(self, prio, item):
        self.items.add((prio, item))
        if len(self.items) > self.size:
            self.items.pop()

    def top(self):
        return self.items[0][1]


buf = PrioritizedReplay(6)
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches)
    point = manager.restore(state)
    for x, y in batches:
        loss = train_step(x, y)
        buf.add(float(loss), (x, y))
        train_step(*buf.top(), 0.5)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
