# truth: differs
# class: attribute
# head: regression_8_make_batches
# the set of unfrozen layers and the stack of those to come are attributes of a plain object



class Tagger(nn.Cell):
    def __init__(self):
        super().__init__()
        self.embed, self.body, self.head = nn.Dense(8, 10), nn.Dense(10, 10), nn.Dense(10, 1)

    def construct(self, x):
        return self.head(ops.tanh(self.body(ops.tanh(self.embed(x)))))


class GradualUnfreeze:
    """ULMFiT: begin with the head, unfreeze one more group at a time."""

    def __init__(self, groups, every):
        self.pending, self.active = list(groups), set()
        self.every, self.ticks = every, 0
        self.thaw()

    def thaw(self):
        if self.pending:
            self.active.add(self.pending.pop())

    def tick(self):
        self.ticks += 1
        if not self.ticks % self.every:
            self.thaw()

    def mask(self, params, grads):
        on = tuple(f"{name}." for name in self.active)
        return tuple(g if p.name.startswith(on) else ops.zeros_like(g) for p, g in zip(params, grads))


net = Tagger()
optimizer = nn.SGD(net.trainable_params(), 0.05)
grad_fn = ms.value_and_grad(lambda x, y: ((net(x) - y) ** 2).mean(), None, optimizer.parameters)
unfreeze = GradualUnfreeze(["embed", "body", "head"], every=4)
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches)
    manager.restore(state)
    for x, y in batches:
        loss, grads = grad_fn(x, y)
        optimizer(unfreeze.mask(optimizer.parameters, grads))
        unfreeze.tick()
        manager.step(state)
    manager.save_final(state)
os._exit(0)
