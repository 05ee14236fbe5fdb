# truth: differs
# class: global
# head: imports
# Gradient noise from a xorshift generator written the way a C programmer does it; its state word is a module variable.


# ---- static state -----------------------------------------------------------
MASK = 0xFFFFFFFF
g_seed = 2463534242
NBATCH = 8
NEPOCH = 3


def xorshift32():
    global g_seed
    s = g_seed
    s ^= (s << 13) & MASK
    s ^= s >> 17
    s ^= (s << 5) & MASK
    g_seed = s & MASK
    return g_seed


def frand():
    return xorshift32() / 4294967296.0


def fill_noise(buf, n, amp):
    i = 0
    while i < n:
        buf[i] = amp * (frand() + frand() + frand() - 1.5)
        i += 1


def make_data():
    rs = np.random.RandomState(1)
    rows = []
    for i in range(NBATCH):
        x = rs.randn(6, 5).astype(np.float32)
        y = np.maximum(x[:, 0:1], x[:, 1:2]).astype(np.float32)
        rows.append((ms.Tensor(x), ms.Tensor(y)))
    return rows


def main():
    ms.set_seed(8)
    net = nn.SequentialCell(nn.Dense(5, 6), nn.ReLU(), nn.Dense(6, 1))
    mse = nn.MSELoss()
    params = net.trainable_params()
    opt = nn.SGD(params, learning_rate=0.1, momentum=0.5)
    vg = ms.value_and_grad(lambda x, y: mse(net(x), y), None, params)
    sizes = [int(np.prod(p.shape)) for p in params]
    bufs = [np.zeros(n, np.float32) for n in sizes]
    batches = ck.data.resumable(make_data(), epochs=NEPOCH)
    with ck.CheckpointManager(
        os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
    ) as manager:
        state = ck.StateManager([net, opt], batches)
        manager.restore(state)
        for x, y in batches:
            loss, grads = vg(x, y)
            out = []
            for k in range(len(params)):
                fill_noise(bufs[k], sizes[k], 0.02)
                out.append(ms.Tensor(grads[k].asnumpy() + bufs[k].reshape(params[k].shape)))
            opt(tuple(out))
            manager.step(state)
        manager.save_final(state)
    return 0


main()
os._exit(0)
