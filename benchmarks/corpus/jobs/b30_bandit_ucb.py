# truth: differs
# class: attribute
# head: regression_8_train_step



class UCB:
    def __init__(self, k):
        self.n, self.q = collections.Counter(), collections.defaultdict(float)
        self.k = k

    def pick(self):
        t = sum(self.n.values()) + 1
        return max(
            range(self.k),
            key=lambda a: float("inf") if not self.n[a] else self.q[a] + math.sqrt(2 * math.log(t) / self.n[a]),
        )

    def update(self, a, r):
        self.n[a] += 1
        self.q[a] += (r - self.q[a]) / self.n[a]


ucb = UCB(4)
lrs = [0.001, 0.003, 0.01, 0.03]
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches)
    point = manager.restore(state)
    for x, y in batches:
        a = ucb.pick()
        ops.assign(optimizer.learning_rate, Tensor(lrs[a], ms.float32))
        loss = train_step(x, y)
        ucb.update(a, -float(loss))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
