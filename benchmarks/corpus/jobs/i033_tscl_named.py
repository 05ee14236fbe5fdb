# truth: exact
# class: random
# head: imports_deque
# Teacher-student curriculum: tasks are chosen by the slopes of their learning curves; curves and generator of the teacher are in its state_dict.


ms.set_seed(333)


class SlopeTeacher:
    def __init__(self, tasks, window=4, eps=0.2, seed=0):
        self.curves = [deque(maxlen=window) for _ in range(tasks)]
        self.eps = eps
        self.rng = np.random.Generator(np.random.PCG64(seed))

    def slope(self, k):
        curve = self.curves[k]
        if len(curve) < 2:
            return np.inf
        return abs(np.polyfit(np.arange(len(curve)), np.array(curve), 1)[0])

    def choose(self):
        if self.rng.random() < self.eps:
            return int(self.rng.integers(len(self.curves)))
        return int(np.argmax([self.slope(k) for k in range(len(self.curves))]))

    def observe(self, k, loss):
        self.curves[k].append(loss)

    def state_dict(self):
        bits = self.rng.bit_generator.state
        return {
            "curves": [list(c) for c in self.curves],
            "state": str(bits["state"]["state"]),
            "inc": str(bits["state"]["inc"]),
            "has_uint32": bits["has_uint32"],
            "uinteger": bits["uinteger"],
        }

    def load_state_dict(self, saved):
        self.curves = [deque(c, maxlen=old.maxlen) for c, old in zip(saved["curves"], self.curves)]
        self.rng.bit_generator.state = {
            "bit_generator": "PCG64",
            "state": {"state": int(saved["state"]), "inc": int(saved["inc"])},
            "has_uint32": saved["has_uint32"],
            "uinteger": saved["uinteger"],
        }


TASKS = (lambda x: x[:, :1], lambda x: x[:, :1] * x[:, 1:2], lambda x: np.sin(3 * x[:, 2:3]))
net = nn.SequentialCell(nn.Dense(4 + len(TASKS), 10), nn.Tanh(), nn.Dense(10, 1))
mse = nn.MSELoss()
opt = nn.Adam(net.trainable_params(), 0.02)
vg = ms.value_and_grad(lambda x, y: mse(net(x), y), None, net.trainable_params())
teacher = SlopeTeacher(len(TASKS), seed=33)
inputs = [(np.random.RandomState(k).randn(6, 4).astype(np.float32),) for k in range(8)]

batches = ck.data.resumable(inputs, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches, teacher=teacher)
    manager.restore(state)
    for (x,) in batches:
        task = teacher.choose()
        tag = np.tile(np.eye(len(TASKS), dtype=np.float32)[task], (len(x), 1))
        y = TASKS[task](x).astype(np.float32)
        loss, grads = vg(ms.Tensor(np.concatenate([x, tag], 1)), ms.Tensor(y))
        opt(grads)
        teacher.observe(task, float(loss.asnumpy()))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
