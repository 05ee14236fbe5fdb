# truth: exact
# class: attribute
# head: classes_6_rows

net = nn.SequentialCell(nn.Dense(6, 12), nn.ReLU(), nn.Dense(12, 4))

opt = nn.Momentum(net.trainable_params(), 0.05, 0.9)


def forward(x, y):
    return ops.cross_entropy(net(x), y)


input_grad = ms.grad(forward, 0)
grad_fn = ms.value_and_grad(forward, None, opt.parameters)


class PGD:
    def __init__(self, steps, top, ramp):
        self.steps, self.top, self.ramp = steps, top, ramp

    def eps(self):
        return self.top * min(1.0, int(opt.global_step.asnumpy().item()) / self.ramp)

    def attack(self, x, y):
        eps, adv = self.eps(), x
        for _ in range(self.steps):
            adv = adv + eps / 2 * ops.sign(input_grad(adv, y))
            adv = x + ops.clamp(adv - x, -eps, eps)
        return adv


pgd = PGD(2, 0.2, 20)
batches = ck.data.resumable(loader, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    for x, y in batches:
        _, grads = grad_fn(pgd.attack(x, y), y)
        opt(grads)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
