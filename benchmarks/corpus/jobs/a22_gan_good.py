# truth: refused or exact
# class: variable
# head: regression_8_arrays

rows = [(Tensor(X[i * 8 : i * 8 + 8]), Tensor(Y[i * 8 : i * 8 + 8])) for i in range(8)]
loss_fn = nn.MSELoss()
G = nn.SequentialCell(nn.Dense(4, 8), nn.ReLU(), nn.Dense(8, 8))
D = nn.SequentialCell(nn.Dense(8, 8), nn.ReLU(), nn.Dense(8, 1))
for _n, _c in (("G.", G), ("D.", D)):
    _c.update_parameters_name(_n)
og, od = nn.Adam(G.trainable_params(), 0.005), nn.Adam(D.trainable_params(), 0.005)
bce = nn.BCEWithLogitsLoss()


def d_loss(real, fake):
    a, b = D(real), D(fake)
    return bce(a, ops.ones_like(a)) + bce(b, ops.zeros_like(b))


def g_loss(z):
    a = D(G(z))
    return bce(a, ops.ones_like(a))


gd = ms.value_and_grad(d_loss, None, od.parameters)
gg = ms.value_and_grad(g_loss, None, og.parameters)
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([G, D, og], batches, second_optimizer=od)
    point = manager.restore(state)
    for x, y in batches:
        z = Tensor(np.random.randn(8, 4).astype(np.float32))
        l, gr = gd(x, ops.stop_gradient(G(z)))
        od(gr)
        l, gr = gg(z)
        og(gr)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
