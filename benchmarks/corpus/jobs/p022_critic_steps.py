# truth: exact
# class: random
# head: pynative_dataset_ops
# Wasserstein GAN with clipped weights: the generator is trained after every third batch of the critic.

ms.set_seed(122)
N_CRITIC, CLIP = 3, 0.1

G = nn.SequentialCell(nn.Dense(4, 16), nn.ReLU(), nn.Dense(16, 2))
C = nn.SequentialCell(nn.Dense(2, 16), nn.ReLU(), nn.Dense(16, 1))
G.update_parameters_name("generator.")
C.update_parameters_name("critic.")
opt_g = nn.Adam(G.trainable_params(), 2e-3)
opt_c = nn.Momentum(C.trainable_params(), 1e-2, 0.5)
g_grad = ms.value_and_grad(lambda z: -C(G(z)).mean(), None, G.trainable_params())
c_grad = ms.value_and_grad(lambda real, z: C(G(z)).mean() - C(real).mean(), None, C.trainable_params())

r = np.random.RandomState(22)
points = (r.randn(80, 2) * 0.2 + np.where(r.rand(80, 1) < 0.5, 1.0, -1.0)).astype(np.float32)
train = ds.NumpySlicesDataset((points,), ["point"], shuffle=True).batch(8)

batches = ck.data.resumable(train, epochs=4)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([C, G, opt_c], batches, opt_g=opt_g)
    point = manager.restore(state)
    for number, (real,) in enumerate(batches, point.batches_delivered):
        loss, grads = c_grad(real, ops.randn(8, 4))
        opt_c(grads)
        manager.fence()
        for w in C.trainable_params():
            ops.assign(w, ops.clip_by_value(w, ms.Tensor(-CLIP), ms.Tensor(CLIP)))
        if number % N_CRITIC == N_CRITIC - 1:
            _, grads = g_grad(ops.randn(8, 4))
            opt_g(grads)
        manager.step(state, {"critic": loss})
    manager.save_final(state)
os._exit(0)
