# truth: exact, may be named
# class: random
# head: imports_ops
# WGAN: the generator is trained every third batch, by the number that restore() returns; the critic's weights are clipped in the loop.


ms.set_seed(20)
np.random.seed(20)
N_CRITIC = 3


def mlp(i, h, o, prefix):
    net = nn.SequentialCell(nn.Dense(i, h), nn.ReLU(), nn.Dense(h, o))
    net.update_parameters_name(prefix)
    return net


G = mlp(3, 8, 4, "G.")
D = mlp(4, 8, 1, "D.")
g_opt = nn.RMSProp(G.trainable_params(), learning_rate=5e-3)
d_opt = nn.RMSProp(D.trainable_params(), learning_rate=5e-3)


def d_loss(real, fake):
    return D(fake).mean() - D(real).mean()


def g_loss(z):
    return -D(G(z)).mean()


d_step = ms.value_and_grad(d_loss, None, D.trainable_params())
g_step = ms.value_and_grad(g_loss, None, G.trainable_params())

real_data = (np.random.RandomState(0).randn(64, 4) * 0.5 + 1.0).astype(np.float32)
batches = ck.data.resumable([(ms.Tensor(real_data[i : i + 8]),) for i in range(0, 64, 8)], epochs=4)


def noise(n=8):
    return ms.Tensor(np.random.randn(n, 3).astype(np.float32))


with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([G, g_opt, D], batches, d_opt=d_opt)
    point = manager.restore(state)
    for it, (real,) in enumerate(batches, point.batches_delivered):
        manager.fence()
        fake = ops.stop_gradient(G(noise()))
        loss, grads = d_step(real, fake)
        d_opt(grads)
        for p in D.trainable_params():
            ops.assign(p, ops.clip_by_value(p, -0.1, 0.1))
        if it % N_CRITIC == N_CRITIC - 1:
            _, grads = g_step(noise())
            g_opt(grads)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
