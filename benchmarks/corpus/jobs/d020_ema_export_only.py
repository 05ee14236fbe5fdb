# truth: exact
# class: file
# head: saving_tensor
# the average of the weights never goes back into training; it is only written to a file at the end

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(1)
g = np.random.default_rng(5)
X, Y = g.normal(size=(64, 8)).astype(np.float32), g.normal(size=(64, 1)).astype(np.float32)
rows = [(Tensor(X[i * 8 : i * 8 + 8]), Tensor(Y[i * 8 : i * 8 + 8])) for i in range(8)]
net = nn.SequentialCell(nn.Dense(8, 8), nn.ReLU(), nn.Dense(8, 1))
loss_fn = nn.MSELoss()
optimizer = nn.Adam(net.trainable_params(), 0.01)
grad_fn = ms.value_and_grad(lambda x, y, w: loss_fn(net(x), y) * w, None, optimizer.parameters)


def train_step(x, y, w=1.0):
    loss, grads = grad_fn(x, y, w)
    optimizer(grads)
    return loss


class ModelEMA:
    def __init__(self, model, decay=0.9):
        self.decay = decay
        self.shadow = {p.name: p.asnumpy().copy() for p in model.get_parameters()}
        self.updates = 0

    def update(self, model):
        self.updates += 1
        d = min(self.decay, (1 + self.updates) / (10 + self.updates))
        for p in model.get_parameters():
            self.shadow[p.name] = d * self.shadow[p.name] + (1 - d) * p.asnumpy()

    def save(self, path):
        np.savez(path, **self.shadow)


ema = ModelEMA(net)
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches)
    manager.restore(state)
    for x, y in batches:
        train_step(x, y)
        ema.update(net)
        manager.step(state)
    manager.save_final(state)
ema.save(f"{ROOT}.ema.npz")
os._exit(0)
