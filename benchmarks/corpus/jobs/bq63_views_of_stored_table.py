# truth: differs
# class: attribute
# head: regression_6_pipeline



class Memory:
    def __init__(self, n):
        self.table = np.ones((n, 2))  # loss, age


class Weighting:
    def __init__(self, memory):
        self.losses = memory.table[:, 0]
        self.ages = memory.table[:, 1]

    def __call__(self, at, loss):
        self.ages += 1
        self.ages[at] = 0
        self.losses[at] = 0.5 * self.losses[at] + 0.5 * loss
        return float(self.losses[at] / self.losses.mean())


net = make_net()
opt = nn.Adam(net.trainable_params(), 0.01)
forward = lambda x, y, w: w * ops.mse_loss(net(x), y)
grad_fn = ms.value_and_grad(forward, None, opt.parameters)
memory = Memory(12)
weighting = Weighting(memory)
X, Y = make_data()
rows = [(Tensor(X[i : i + 8]), Tensor(Y[i : i + 8])) for i in range(0, 96, 8)]
run = ck.loop(
    ROOT, rows, epochs=3, train=[net, opt], stateful={"memory": ck.attributes(memory, "table")}, **SAVE
)
for x, y in run:
    number = run.step
    weight = weighting(number % 12, float(ops.mse_loss(net(x), y)))
    loss, grads = grad_fn(x, y, weight)
    opt(grads)
os._exit(0)
