# truth: differs
# class: variable
# head: classes_6_rows



def make(width):
    return nn.SequentialCell(nn.Dense(6, width), nn.ReLU(), nn.Dense(width, 4))


nets = [make(8), make(10)]
for i, n in enumerate(nets):
    n.update_parameters_name(f"net{i}.")
optims = [nn.Momentum(n.trainable_params(), 0.05, 0.9) for n in nets]


def mutual(i):
    def forward(x, y, other):
        logits = nets[i](x)
        return ops.cross_entropy(logits, y) - (other * ops.log_softmax(logits, -1)).sum(-1).mean()

    return ms.value_and_grad(forward, None, optims[i].parameters)


steps = [mutual(0), mutual(1)]
batches = ck.data.resumable(loader, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([nets[0], optims[0]], batches)
    manager.restore(state)
    for x, y in batches:
        soft = [ops.softmax(n(x), -1) for n in nets]
        for i in (0, 1):
            _, grads = steps[i](x, y, soft[1 - i])
            optims[i](grads)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
