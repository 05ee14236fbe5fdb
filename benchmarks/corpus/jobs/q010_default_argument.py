# truth: differs
# class: closure
# head: pynative_hashlib_dataset_ops
# Gradient centralisation with a mutable default argument that remembers the last norms.

ms.set_seed(20)


def limit(grads, seen=[]):
    norm = float(sum((g * g).sum() for g in grads)) ** 0.5
    seen.append(norm)
    bound = sum(seen[-8:]) / len(seen[-8:])
    return tuple(g * min(1.0, 0.8 * bound / norm) for g in grads)


r = np.random.RandomState(10)
x = r.rand(56, 4).astype(np.float32)
y = np.sqrt(x.sum(1, keepdims=True)).astype(np.float32)
net = nn.SequentialCell(nn.Dense(4, 8), nn.Sigmoid(), nn.Dense(8, 1))
opt = nn.Momentum(net.trainable_params(), 0.1, 0.9)
mse = nn.MSELoss()
grad_fn = ms.value_and_grad(lambda a, b: mse(net(a), b), None, opt.parameters)
train = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=True).batch(7)

for a, b in ck.loop(
    os.environ["ROOT"],
    train,
    epochs=4,
    train=[net, opt],
    save=ck.SaveEvery(micro_steps=5),
    saving=ck.Saving(when_busy="wait"),
):
    loss, grads = grad_fn(a, b)
    opt(limit(grads))
print(hashlib.sha256(b"".join(p.asnumpy().tobytes() for p in net.get_parameters())).hexdigest(), flush=True)
os._exit(0)
