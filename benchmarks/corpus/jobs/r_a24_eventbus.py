# truth: differs
# class: closure
# head: regression_8_momentum



grad_fn = ms.value_and_grad(forward_fn, None, optimizer.parameters)


class Bus:
    def __init__(self):
        self.subs = collections.defaultdict(list)

    def on(self, ev):
        def deco(f):
            self.subs[ev].append(f)
            return f

        return deco

    def emit(self, ev, *a):
        for f in self.subs[ev]:
            f(*a)


bus = Bus()


def install():
    seen = 0

    @bus.on("grads")
    def decay(holder):
        nonlocal seen
        seen += 1
        holder["grads"] = tuple(q * 0.95**seen for q in holder["grads"])


install()
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches)
    point = manager.restore(state)
    for x, y in batches:
        loss, grads = grad_fn(x, y)
        h = {"grads": grads}
        bus.emit("grads", h)
        optimizer(h["grads"])
        manager.step(state)
    manager.save_final(state)
os._exit(0)
