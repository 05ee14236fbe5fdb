# truth: differs
# class: attribute
# head: saving_pynative_dataset_parameter

rng0 = np.random.default_rng(3)
SIG = np.sin(np.arange(300) * 0.21).astype(np.float32)
loader = [
    (Tensor(SIG[i : i + 10][None, :, None]), Tensor(SIG[i + 1 : i + 11][None, :, None])) for i in range(0, 280, 10)
]


class StatefulRNN(nn.Cell):
    def __init__(self):
        super().__init__()
        self.cell, self.out = nn.RNNCell(1, 6), nn.Dense(6, 1)
        self.reset()

    def reset(self):
        self.carry = ops.zeros((1, 6), ms.float32)

    def construct(self, x):
        h, outs = self.carry, []
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
            outs.append(self.out(h))
        self.carry = ops.stop_gradient(h)
        return ops.stack(outs, 1)


net = StatefulRNN()
loss_fn = nn.MSELoss()
opt = nn.Momentum(net.trainable_params(), 0.03, 0.9)
grad_fn = ms.value_and_grad(lambda x, y: loss_fn(net(x), y), None, opt.parameters)

batches = ck.data.resumable(loader, epochs=1)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, opt], batches)
    point = manager.restore(state)
    for step, (x, y) in enumerate(batches, point.batches_delivered):
        if step % 8 == 0:
            net.reset()
        loss, grads = grad_fn(x, y)
        opt(grads)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
