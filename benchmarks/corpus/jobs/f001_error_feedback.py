# truth: differs
# class: iterator
# head: imports_ops
# Top-k gradient sparsification with error feedback; the residuals live in a dict beside the optimizer and are lost.


ms.set_seed(11)
rng = np.random.RandomState(3)
X = rng.randn(64, 12).astype(np.float32)
Y = (X[:, :3].sum(1, keepdims=True) > 0).astype(np.float32)


def make_loader(bs=8):
    return [(ms.Tensor(X[i : i + bs]), ms.Tensor(Y[i : i + bs])) for i in range(0, 64, bs)]


class TopK:
    """Sends only the largest 20 % of the entries, keeps the rest for the next round (Stich et al. 2018)."""

    def __init__(self, ratio):
        self.ratio = ratio
        self.residual = {}

    def compress(self, name, grad):
        acc = grad.asnumpy() + self.residual.get(name, 0.0)
        k = max(1, int(acc.size * self.ratio))
        thr = np.sort(np.abs(acc).ravel())[-k]
        sent = np.where(np.abs(acc) >= thr, acc, 0.0).astype(np.float32)
        self.residual[name] = acc - sent
        return ms.Tensor(sent)


net = nn.SequentialCell(nn.Dense(12, 8), nn.Tanh(), nn.Dense(8, 1))
loss_fn = nn.MSELoss()
params = net.trainable_params()
optimizer = nn.SGD(params, learning_rate=0.2)


def forward_fn(x, y):
    return loss_fn(net(x), y)


grad_fn = ms.value_and_grad(forward_fn, None, params)
compressor = TopK(0.2)


def train_one(x, y):
    loss, grads = grad_fn(x, y)
    grads = tuple(compressor.compress(p.name, g) for p, g in zip(params, grads))
    optimizer(grads)
    return loss


def main():
    batches = ck.data.resumable(make_loader(), epochs=3)
    with ck.CheckpointManager(
        os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
    ) as manager:
        state = ck.StateManager([net, optimizer], batches)
        manager.restore(state)
        for step, (x, y) in enumerate(batches):
            loss = train_one(x, y)
            if step % 8 == 0:
                print(f"step {step} loss {float(loss):.4f}")
            manager.step(state)
        manager.save_final(state)


if __name__ == "__main__":
    main()
    os._exit(0)
