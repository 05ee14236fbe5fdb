# truth: differs
# class: variable
# head: imports_dataset
# Rows with a huge loss are written to a list of suspects; a start leaves out the suspects of the starts before it.


ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(136)
SUSPECTS = os.environ["ROOT"] + "-suspects.txt"


def read_suspects():
    if not os.path.exists(SUSPECTS):
        return set()
    with open(SUSPECTS) as file:
        return {int(line) for line in file}


r = np.random.RandomState(38)
x = r.randn(80, 6).astype(np.float32)
y = (x[:, :1] + x[:, 1:2] ** 2).astype(np.float32)
y[r.choice(80, 12, replace=False)] += 8.0
number = np.arange(80, dtype=np.int32)
train = ds.NumpySlicesDataset((number, x, y), ["number", "x", "y"], shuffle=True).batch(8)
net = nn.SequentialCell(nn.Dense(6, 12), nn.ReLU(), nn.Dense(12, 1))
optimizer = nn.Momentum(net.trainable_params(), 0.01, 0.9)


def forward(x, y, keep):
    each = ((net(x) - y) ** 2)[:, 0]
    return (each * keep).sum() / 8, each


grad_fn = ms.value_and_grad(forward, None, net.trainable_params(), has_aux=True)
suspects = read_suspects()
os.makedirs(os.path.dirname(SUSPECTS), exist_ok=True)

batches = ck.data.resumable(train, epochs=4)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, optimizer], batches)
    manager.restore(state)
    for numbers, xb, yb in batches:
        numbers = numbers.asnumpy()
        keep = ms.Tensor([0.0 if int(n) in suspects else 1.0 for n in numbers], ms.float32)
        (loss, each), grads = grad_fn(xb, yb, keep)
        optimizer(grads)
        with open(SUSPECTS, "a") as file:
            for n, value in zip(numbers, each.asnumpy()):
                if value > 25:
                    file.write(f"{n}\n")
        manager.step(state, {"loss": loss})
    manager.save_final(state)
os._exit(0)
