# truth: differs
# class: attribute
# head: imports_ops
# Mixture of experts without auxiliary loss (as in DeepSeek-V3): a bias per expert, moved by the sign of its load, decides the routing.


ms.set_seed(37)
EXPERTS, TOPK, DIM = 4, 2, 6


class MoE(nn.Cell):
    def __init__(self):
        super().__init__()
        self.router = nn.Dense(DIM, EXPERTS, has_bias=False)
        self.experts = nn.CellList(
            [nn.SequentialCell(nn.Dense(DIM, 8), nn.GELU(), nn.Dense(8, 1)) for _ in range(EXPERTS)]
        )

    def scores(self, x):
        return ops.sigmoid(self.router(x))

    def construct(self, x, mask):
        gate = self.scores(x) * mask
        gate = gate / (gate.sum(1).reshape((-1, 1)) + 1e-6)
        outs = ops.concat([expert(x) for expert in self.experts], axis=1)
        return (gate * outs).sum(1).reshape((-1, 1))


class LossFreeBalancer:
    """gamma moves the bias of an overloaded expert down, of an idle one up; used for top-k only"""

    def __init__(self, gamma=0.05):
        self.bias = np.zeros(EXPERTS, np.float32)
        self.gamma = gamma

    def route(self, scores):
        top = np.argsort(-(scores + self.bias), axis=1, kind="stable")[:, :TOPK]
        mask = np.zeros_like(scores)
        np.put_along_axis(mask, top, 1.0, axis=1)
        load = mask.sum(0)
        self.bias += self.gamma * np.sign(load.mean() - load)
        return mask


moe = MoE()
opt = nn.AdamWeightDecay(moe.trainable_params(), learning_rate=0.01, weight_decay=0.01)
mse = nn.MSELoss()
vg = ms.value_and_grad(lambda x, m, y: mse(moe(x, m), y), None, moe.trainable_params())
balancer = LossFreeBalancer()

r = np.random.RandomState(8)
tokens = r.randn(80, DIM).astype(np.float32) + 0.5
target = np.where(tokens[:, :1] > 0.5, tokens[:, 1:2], -tokens[:, 2:3]).astype(np.float32)
batches = ck.data.resumable([(tokens[i : i + 10], target[i : i + 10]) for i in range(0, 80, 10)], epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([moe, opt], batches)
    manager.restore(state)
    for x, y in batches:
        mask = balancer.route(moe.scores(ms.Tensor(x)).asnumpy())
        loss, grads = vg(ms.Tensor(x), ms.Tensor(mask), ms.Tensor(y))
        opt(grads)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
