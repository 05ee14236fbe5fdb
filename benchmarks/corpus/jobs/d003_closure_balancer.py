# truth: differs
# class: closure
# head: saving_tensor
# the running average of the loss lives in a closure (nonlocal) and scales the next losses

ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(1)
g = np.random.default_rng(5)
X, Y = g.normal(size=(64, 8)).astype(np.float32), g.normal(size=(64, 1)).astype(np.float32)
rows = [(Tensor(X[i * 8 : i * 8 + 8]), Tensor(Y[i * 8 : i * 8 + 8])) for i in range(8)]
net = nn.SequentialCell(nn.Dense(8, 8), nn.ReLU(), nn.Dense(8, 1))
loss_fn = nn.MSELoss()
optimizer = nn.Momentum(net.trainable_params(), 0.03, 0.9)


def forward_fn(x, y, w):
    loss = loss_fn(net(x), y)
    return loss * w, loss


grad_fn = ms.value_and_grad(forward_fn, None, optimizer.parameters, has_aux=True)


@ms.jit
def train_step(x, y, w):
    (_, loss), grads = grad_fn(x, y, w)
    optimizer(grads)
    return loss


def make_balancer(beta):
    average = None

    def observe(value):
        nonlocal average
        average = value if average is None else beta * average + (1 - beta) * value

    def weight():
        return 1.0 if average is None else 1.0 / (0.5 + average)

    return observe, weight


def run(epochs):
    observe, weight = make_balancer(0.8)
    batches = ck.data.resumable(rows, epochs=epochs)
    with ck.CheckpointManager(ROOT, **SAVE) as manager:
        state = ck.StateManager([net, optimizer], batches)
        manager.restore(state)
        for x, y in batches:
            loss = train_step(x, y, Tensor(weight(), ms.float32))
            observe(float(loss.asnumpy()))
            manager.step(state)
        manager.save_final(state)


run(3)
os._exit(0)
