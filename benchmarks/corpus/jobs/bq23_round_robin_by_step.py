# truth: exact
# class: random
# head: imports_tensor_ops


ROOT = os.environ["ROOT"]
ms.set_seed(3)
TASKS = {"depth": 1.0, "normal": 0.5, "edges": 2.0}


class Task:
    def __init__(self, name, weight, seed, n=48, batch=6):
        rng = np.random.default_rng(seed)
        self.name, self.weight, self.batch, self.seed = name, weight, batch, seed
        self.x = rng.normal(size=(n, 6)).astype(np.float32)
        self.y = np.tanh(self.x @ rng.normal(size=(6, 1))).astype(np.float32)
        self.head = nn.Dense(8, 1)
        self.head.update_parameters_name(f"{name}.")

    def get(self, k):
        per_epoch = len(self.x) // self.batch
        order = np.random.default_rng([self.seed, k // per_epoch]).permutation(len(self.x))
        rows = order[(k % per_epoch) * self.batch :][: self.batch]
        return Tensor(self.x[rows]), Tensor(self.y[rows])


trunk = nn.SequentialCell(nn.Dense(6, 8), nn.ReLU())
trunk.update_parameters_name("trunk.")
tasks = [Task(name, weight, seed) for seed, (name, weight) in enumerate(TASKS.items())]
optimizers = [nn.Adam(trunk.trainable_params() + t.head.trainable_params(), 0.01) for t in tasks]
steps = []
for task, optimizer in zip(tasks, optimizers):

    def forward(x, y, task=task):
        return task.weight * ops.mse_loss(task.head(trunk(x)), y)

    steps.append(ms.value_and_grad(forward, None, optimizer.parameters))

named = {f"{t.name}_head": t.head for t in tasks} | {f"{t.name}_opt": o for t, o in zip(tasks, optimizers)}
run = ck.loop(
    ROOT,
    range(45),
    epochs=1,
    train=[trunk],
    stateful=named,
    save=ck.SaveEvery(micro_steps=5),
    saving=ck.Saving(when_busy="wait"),
)
for _ in run:
    step = run.step
    turn = step % len(tasks)
    x, y = tasks[turn].get(step // len(tasks))
    loss, grads = steps[turn](x, y)
    optimizers[turn](grads)
    print(step, tasks[turn].name, f"{float(loss):.4f}")
os._exit(0)
