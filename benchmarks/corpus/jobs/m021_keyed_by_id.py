# truth: differs
# class: attribute
# head: pynative
# A clipper keeps a running norm per weight, keyed by id(weight), and is given by name; in the next process the weights have other ids.

ms.set_seed(4321)


class AdaptiveClip:
    """limits each gradient to a multiple of its own running norm"""

    def __init__(self, factor=1.1, decay=0.9):
        self.factor, self.decay = factor, decay
        self.norms = {}

    def __call__(self, weights, grads):
        clipped = []
        for weight, grad in zip(weights, grads):
            norm = float(((grad * grad).sum() ** 0.5).asnumpy())
            running = self.norms.get(id(weight), norm)
            clipped.append(grad * min(1.0, self.factor * running / (norm + 1e-9)))
            self.norms[id(weight)] = self.decay * running + (1 - self.decay) * norm
        return tuple(clipped)

    def state_dict(self):
        return {"norms": dict(self.norms)}

    def load_state_dict(self, state):
        self.norms = dict(state["norms"])


r = np.random.RandomState(21)
rows = []
for i in range(8):
    x = r.randn(8, 5).astype(np.float32) * (1 + i % 3)
    rows.append((ms.Tensor(x), ms.Tensor((x[:, :1] - np.abs(x[:, 1:2])).astype(np.float32))))
net = nn.SequentialCell(nn.Dense(5, 8), nn.Tanh(), nn.Dense(8, 1))
mse = nn.MSELoss()
opt = nn.Momentum(net.trainable_params(), 0.02, 0.9)
gradients = ms.value_and_grad(lambda x, y: mse(net(x), y), None, net.trainable_params())
clip = AdaptiveClip()

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches, clip=clip)
    manager.restore(state)
    for x, y in batches:
        loss, grads = gradients(x, y)
        opt(clip(net.trainable_params(), grads))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
