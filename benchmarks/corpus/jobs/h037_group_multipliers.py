# truth: differs
# class: variable
# head: imports
# Discriminative fine-tuning: layers are groups (dicts) with a multiplier each; a group that moves too fast is damped for good.


ms.set_seed(85)

body = nn.SequentialCell(nn.Dense(8, 8), nn.Tanh(), nn.Dense(8, 6), nn.Tanh())
head = nn.Dense(6, 3)
net = nn.SequentialCell(body, head)
groups = [
    {"name": "body", "params": body.trainable_params(), "mult": 0.5},
    {"name": "head", "params": head.trainable_params(), "mult": 1.0},
]
optimizer = nn.Momentum(
    [{"params": g["params"], "weight_decay": 0.01 if g["name"] == "head" else 0.0} for g in groups],
    learning_rate=0.1,
    momentum=0.9,
)
loss_fn = nn.CrossEntropyLoss()
weights = ms.ParameterTuple([p for g in groups for p in g["params"]])
vg = ms.value_and_grad(lambda x, y: loss_fn(net(x), y), None, weights)


def scaled(grads):
    grads, out = list(grads), []
    for group in groups:
        mine = [grads.pop(0) for _ in group["params"]]
        size = float(np.sqrt(np.mean([float((g * g).mean().asnumpy()) for g in mine])))
        group["mult"] *= 0.93 if size * group["mult"] > 0.02 else 1.01
        out += [g * group["mult"] for g in mine]
    return tuple(out)


r = np.random.RandomState(67)
label = r.randint(0, 3, 64).astype(np.int32)
X = (r.randn(64, 8) + 0.8 * np.eye(3, 8)[label]).astype(np.float32)
rows = [(ms.Tensor(X[i : i + 8]), ms.Tensor(label[i : i + 8])) for i in range(0, 64, 8)]
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, optimizer], batches)
    manager.restore(state)
    for x, y in batches:
        loss, grads = vg(x, y)
        optimizer(scaled(grads))
        manager.step(state)
    print({g["name"]: round(g["mult"], 4) for g in groups})
    manager.save_final(state)
os._exit(0)
