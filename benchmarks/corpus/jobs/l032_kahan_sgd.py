# truth: exact
# class: attribute
# head: pynative_ops
# SGD with Kahan's compensated summation, a subclass of nn.Optimizer: what rounding cut off is kept in a cloned ParameterTuple.

ms.set_seed(4132)


class KahanSGD(nn.Optimizer):
    def __init__(self, params, learning_rate):
        super().__init__(learning_rate, params)
        self.lost = self.parameters.clone(prefix="lost", init="zeros")

    def construct(self, gradients):
        ops.assign_add(self.global_step, ms.Tensor([1], ms.int32))
        rate = self.get_lr()
        for p, lost, g in zip(self.parameters, self.lost, gradients):
            wanted = -rate * g - lost
            total = p + wanted
            ops.assign(lost, (total - p) - wanted)
            ops.assign(p, total)
        return True


r = np.random.RandomState(32)
rows = []
for _ in range(8):
    x = r.randn(8, 4).astype(np.float32)
    rows.append((ms.Tensor(x), ms.Tensor((100 + x[:, :1] * x[:, 1:2]).astype(np.float32))))
net = nn.SequentialCell(nn.Dense(4, 6), nn.Tanh(), nn.Dense(6, 1))
mse = nn.MSELoss()
opt = KahanSGD(net.trainable_params(), 0.01)
gradients = ms.value_and_grad(lambda x, y: mse(net(x), y) / 100, None, net.trainable_params())

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    for x, y in batches:
        loss, grads = gradients(x, y)
        manager.fence()
        opt(grads)
        cut_off = max(float(lost.abs().max().asnumpy()) for lost in opt.lost)
        print(f"loss {float(loss.asnumpy()):.4f}, at most {cut_off:.2e} was cut off")
        manager.step(state)
    manager.save_final(state)
os._exit(0)
