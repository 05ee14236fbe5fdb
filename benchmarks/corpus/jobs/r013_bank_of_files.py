# truth: differs
# class: file
# head: imports
# Each batch leaves its inputs in a file by its number in the epoch, and is mixed with those of another number.


ms.set_seed(613)

net = nn.SequentialCell(nn.Dense(6, 8), nn.Tanh(), nn.Dense(8, 1))
mse = nn.MSELoss()
opt = nn.Momentum(net.trainable_params(), learning_rate=0.02, momentum=0.9)
vg = ms.value_and_grad(lambda x, y: mse(net(x), y), None, net.trainable_params())
r = np.random.RandomState(613)
rows = [(r.randn(6, 6).astype(np.float32), r.randn(6, 1).astype(np.float32)) for _ in range(8)]

BANK = "bank"
os.makedirs(BANK, exist_ok=True)
for at in range(8):
    np.save(os.path.join(BANK, f"{at}.npy"), np.zeros((6, 6), np.float32))

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    for x, y in batches:
        at = int(abs(x[0, 0]) * 100) % 8
        other = (at * 5 + 3) % 8
        mixed = 0.7 * x + 0.3 * np.load(f"{BANK}/{other}.npy")
        loss, grads = vg(ms.Tensor(mixed.astype(np.float32)), ms.Tensor(y))
        opt(grads)
        np.save(f"{BANK}/{at}.npy", x * 0.9)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
