# truth: differs
# class: attribute
# head: imports_ops
# Updates are commands with undo: the last three are on a stack, and if the loss has doubled against the best seen, they are taken back.


ms.set_seed(74)


class UpdateCommand:
    def __init__(self, params, grads, rate):
        self.params = params
        self.deltas = [ms.Tensor((-rate * g.asnumpy()).astype(np.float32)) for g in grads]

    def execute(self):
        for p, d in zip(self.params, self.deltas):
            ops.assign_add(p, d)

    def undo(self):
        for p, d in zip(self.params, self.deltas):
            ops.assign_sub(p, d * 0.5)


class Invoker:
    def __init__(self, depth=3):
        self.depth, self.done, self.best = depth, [], float("inf")

    def submit(self, command, loss):
        if loss > 2 * self.best and self.done:
            while self.done:
                self.done.pop().undo()
        command.execute()
        self.done = (self.done + [command])[-self.depth :]
        self.best = min(self.best * 1.05, loss)


net = nn.SequentialCell(nn.Dense(6, 8), nn.Tanh(), nn.Dense(8, 1))
params = net.trainable_params()
mse = nn.MSELoss()
vg = ms.value_and_grad(lambda x, y: mse(net(x), y), None, net.trainable_params())
r = np.random.RandomState(12)
rows = []
for k in range(8):
    x = r.randn(6, 6).astype(np.float32)
    rows.append((ms.Tensor(x), ms.Tensor((x[:, :1] * (1 + 2 * (k % 4))).astype(np.float32))))

invoker = Invoker()
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net], batches)
    manager.restore(state)
    for x, y in batches:
        manager.fence()
        loss, grads = vg(x, y)
        invoker.submit(UpdateCommand(params, grads, 0.05), float(loss.asnumpy()))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
