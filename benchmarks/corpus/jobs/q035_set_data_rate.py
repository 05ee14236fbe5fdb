# truth: refused
# class: other
# head: imports_hashlib_dataset
# The learning rate is set with set_data after each epoch, in PYNATIVE mode.


ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(45)
r = np.random.RandomState(35)
x = r.randn(36, 4).astype(np.float32)
y = x.mean(1, keepdims=True)
data = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=True).batch(6)
net = nn.SequentialCell(nn.Dense(4, 8), nn.Tanh(), nn.Dense(8, 1))
opt = nn.Momentum(net.trainable_params(), 0.1, 0.9)
mse = nn.MSELoss()
grad_fn = ms.value_and_grad(lambda a, b: mse(net(a), b), None, opt.parameters)
run = ck.loop(
    os.environ["ROOT"],
    data,
    epochs=5,
    train=[net, opt],
    save=ck.SaveEvery(micro_steps=5),
    saving=ck.Saving(when_busy="wait"),
)
for a, b in run:
    number = run.step
    if number and number % 6 == 0:
        opt.learning_rate.set_data(ms.Tensor(0.1 * 0.5 ** (number // 6), ms.float32))
    loss, grads = grad_fn(a, b)
    opt(grads)
print(hashlib.sha256(b"".join(p.asnumpy().tobytes() for p in net.get_parameters())).hexdigest(), flush=True)
os._exit(0)
