# truth: exact
# class: attribute
# head: imports_ops
# The Accumulator class of MindSpore's tutorial on gradient accumulation; its sums and its counter are Parameters, and it is given by name.


ms.set_seed(305)


class Accumulator:
    def __init__(self, optimizer, accumulate_step):
        self.optimizer = optimizer
        self.inner_grads = optimizer.parameters.clone(prefix="accumulate_", init="zeros")
        self.counter = ms.Parameter(ms.Tensor(0, ms.int32), name="counter_", requires_grad=False)
        self.accumulate_step = accumulate_step

    def __call__(self, grads):
        for total, g in zip(self.inner_grads, grads):
            ops.assign_add(total, g)
        ops.assign_add(self.counter, ms.Tensor(1, ms.int32))
        if int(self.counter.asnumpy()) % self.accumulate_step == 0:
            self.optimizer(tuple(total / self.accumulate_step for total in self.inner_grads))
            for total in self.inner_grads:
                ops.assign(total, ops.zeros_like(total))


net = nn.SequentialCell(nn.Dense(6, 8), nn.ReLU(), nn.Dense(8, 2))
loss_fn = nn.MSELoss()
optimizer = nn.Momentum(net.trainable_params(), 0.05, 0.9)
accumulator = Accumulator(optimizer, 4)
grad_fn = ms.value_and_grad(lambda x, y: loss_fn(net(x), y), None, net.trainable_params())

r = np.random.RandomState(15)
rows = []
for _ in range(8):
    x = r.randn(5, 6).astype(np.float32)
    rows.append((ms.Tensor(x), ms.Tensor(np.stack([x[:, 0] - x[:, 1], x[:, 2] ** 2], 1).astype(np.float32))))

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(
        [net, optimizer],
        batches,
        accumulator=ck.attributes(accumulator, "inner_grads", "counter"),
    )
    manager.restore(state)
    for step, (x, y) in enumerate(batches):
        loss, grads = grad_fn(x, y)
        accumulator(grads)
        if step % 4 == 0:
            print(f"loss {float(loss.asnumpy()):.4f}")
        manager.step(state)
    manager.save_final(state)
os._exit(0)
