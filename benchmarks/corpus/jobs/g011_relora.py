# truth: exact
# class: random
# head: imports_parameter
# ReLoRA: every six batches (by the restored position) the low-rank product is merged into the base weight and started anew.


ms.set_seed(16)
D, RANK, MERGE_EVERY = 8, 2, 6


def fresh_a(seed):
    return np.random.RandomState(seed).randn(D, RANK).astype(np.float32) * 0.3


class LoRADense(nn.Cell):
    def __init__(self):
        super().__init__()
        self.base = nn.Dense(D, D)
        for p in self.base.get_parameters():
            p.requires_grad = False
        self.lora_a = Parameter(Tensor(fresh_a(0)), name="lora_a")
        self.lora_b = Parameter(Tensor(np.zeros((RANK, D), np.float32)), name="lora_b")

    def construct(self, x):
        return self.base(x) + ops.matmul(ops.matmul(x, self.lora_a), self.lora_b)

    def merge(self, seed):
        product = self.lora_a.asnumpy() @ self.lora_b.asnumpy()
        ops.assign(self.base.weight, Tensor((self.base.weight.asnumpy() + product.T).astype(np.float32)))
        ops.assign(self.lora_a, Tensor(fresh_a(seed)))
        ops.assign(self.lora_b, Tensor(np.zeros((RANK, D), np.float32)))


class Model(nn.Cell):
    def __init__(self):
        super().__init__()
        self.lora = LoRADense()
        self.head = nn.Dense(D, 1)

    def construct(self, x, y):
        return ((self.head(ops.tanh(self.lora(x))) - y) ** 2).mean()


model = Model()
cell = ck.AccumulationTrainCell(model, nn.AdamWeightDecay(model.trainable_params(), learning_rate=0.02), 1)
cell.set_train()
rng = np.random.default_rng(0)
rows = []
for _ in range(8):
    x = rng.normal(size=(6, D)).astype(np.float32)
    rows.append((Tensor(x), Tensor(np.sin(x[:, :1] * 2).astype(np.float32))))

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches)
    point = manager.restore(state)
    for step, (x, y) in enumerate(batches, point.batches_delivered + 1):
        cell(x, y)
        if step % MERGE_EVERY == 0:
            manager.fence()
            model.lora.merge(seed=step)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
