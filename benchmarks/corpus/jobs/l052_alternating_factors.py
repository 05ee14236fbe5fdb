# truth: exact
# class: attribute
# head: pynative_ops
# Matrix factorization by turns: users for four batches, then items for four; whose turn it is follows from the number that restore() returns.

ms.set_seed(4152)


class Factors(nn.Cell):
    def __init__(self, users, items, rank=3):
        super().__init__()
        r = np.random.RandomState(152)
        self.users = ms.Parameter((0.3 * r.randn(users, rank)).astype(np.float32), name="users")
        self.items = ms.Parameter((0.3 * r.randn(items, rank)).astype(np.float32), name="items")
        self.user_bias = ms.Parameter(np.zeros(users, np.float32), name="user_bias")
        self.item_bias = ms.Parameter(np.zeros(items, np.float32), name="item_bias")

    def construct(self, u, i):
        bias = ops.gather(self.user_bias, u, 0) + ops.gather(self.item_bias, i, 0)
        return (ops.gather(self.users, u, 0) * ops.gather(self.items, i, 0)).sum(-1) + bias


r = np.random.RandomState(52)
taste, kind = r.randn(12, 3), r.randn(9, 3)
rows = []
for _ in range(8):
    u, i = r.randint(0, 12, 10), r.randint(0, 9, 10)
    stars = np.tanh((taste[u] * kind[i]).sum(1)).astype(np.float32)
    rows.append((ms.Tensor(u.astype(np.int32)), ms.Tensor(i.astype(np.int32)), ms.Tensor(stars)))

model = Factors(12, 9)


def loss_fn(u, i, stars):
    return ((model(u, i) - stars) ** 2).mean()


sides = []
for name, side in (("users", [model.users, model.user_bias]), ("items", [model.items, model.item_bias])):
    opt = nn.Momentum(side, 0.3, 0.8)
    sides.append((name, opt, ms.value_and_grad(loss_fn, None, side)))
errors = {"users": [], "items": []}

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([model], batches, of_users=sides[0][1], of_items=sides[1][1])
    point = manager.restore(state)
    for number, batch in enumerate(batches, point.batches_delivered):
        name, opt, gradients = sides[number // 4 % 2]
        loss, grads = gradients(*batch)
        manager.fence()
        opt(grads)
        errors[name].append(float(loss.asnumpy()))
        manager.step(state)
    manager.save_final(state)
    print({name: np.round(np.mean(values), 4) for name, values in errors.items()})
os._exit(0)
