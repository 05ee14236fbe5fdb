# truth: differs
# class: attribute
# head: regression_6_grad_fn



class Peekable:
    END = object()

    def __init__(self, iterable):
        self.it = iter(iterable)
        self.head = next(self.it, self.END)

    def __iter__(self):
        return self

    def __next__(self):
        if self.head is self.END:
            raise StopIteration
        item, self.head = self.head, next(self.it, self.END)
        return item

    def peek(self, default=None):
        return default if self.head is self.END else self.head


batches = ck.data.resumable(loader, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    stream = Peekable(batches)
    for x, y in stream:
        ahead = stream.peek((x, y))[0]
        loss, grads = grad_fn(0.9 * x + 0.1 * ahead, y)
        opt(grads)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
