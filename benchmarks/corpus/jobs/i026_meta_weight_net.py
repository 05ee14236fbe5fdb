# truth: exact
# class: variable
# head: imports_ops
# Meta-Weight-Net (simplified): a small network weighs noisy samples by their losses and has its own optimizer; both are given by name.


ms.set_seed(326)

net = nn.SequentialCell(nn.Dense(4, 8), nn.Tanh(), nn.Dense(8, 1))
vnet = nn.SequentialCell(nn.Dense(1, 6), nn.ReLU(), nn.Dense(6, 1), nn.Sigmoid())
net.update_parameters_name("net.")
vnet.update_parameters_name("vnet.")
opt = nn.Momentum(net.trainable_params(), 0.05, 0.9)
vopt = nn.Adam(vnet.trainable_params(), 0.02)


def per_sample(x, y):
    return ((net(x) - y) ** 2).sum(1, keepdims=True)


def weighted(x, y, w):
    return (per_sample(x, y) * w).mean()


def match(losses, wish):
    return ((vnet(losses) - wish) ** 2).mean()


train_grad = ms.value_and_grad(weighted, None, net.trainable_params())
meta_grad = ms.value_and_grad(match, None, vnet.trainable_params())

r = np.random.RandomState(26)
x_meta = r.randn(8, 4).astype(np.float32)
y_meta = (x_meta[:, :1] + x_meta[:, 1:2]).astype(np.float32)
data = []
for _ in range(8):
    x = r.randn(8, 4).astype(np.float32)
    y = x[:, :1] + x[:, 1:2]
    y[::4] = r.randn(2, 1) * 3
    data.append((ms.Tensor(x), ms.Tensor(y.astype(np.float32))))

batches = ck.data.resumable(data, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches, vnet=vnet, vopt=vopt)
    manager.restore(state)
    for x, y in batches:
        losses = per_sample(x, y)
        # samples whose loss is like that of clean ones should count
        clean = float(per_sample(ms.Tensor(x_meta), ms.Tensor(y_meta)).mean().asnumpy())
        wish = ms.Tensor((losses.asnumpy() < 1.5 * clean).astype(np.float32))
        scaled = ms.Tensor(np.minimum(losses.asnumpy(), 5.0))
        _, meta = meta_grad(scaled, wish)
        vopt(meta)
        w = ops.stop_gradient(vnet(scaled))
        loss, grads = train_grad(x, y, w)
        opt(grads)
        manager.step(state, {"loss": loss})
    manager.save_final(state)
os._exit(0)
