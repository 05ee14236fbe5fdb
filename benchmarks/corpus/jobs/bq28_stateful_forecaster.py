# truth: differs
# class: data
# head: imports_tensor_ops


ROOT = os.environ["ROOT"]
ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(2)


class Forecaster(nn.Cell):
    def __init__(self, hidden=8):
        super().__init__()
        self.cell, self.out, self.hidden = nn.GRUCell(1, hidden), nn.Dense(hidden, 1), hidden

    def construct(self, x, h):
        outputs = []
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
            outputs.append(self.out(h))
        return ops.stack(outputs, 1), h


class StreamTrainer:
    """Trains on a long series, window by window; the hidden state goes on."""

    def __init__(self, model, optimizer, streams):
        self.model, self.optimizer = model, optimizer
        self.memory = {"h": None, "streams": streams}
        self.grad_fn = ms.value_and_grad(self.forward, None, optimizer.parameters, has_aux=True)

    def forward(self, x, y, h):
        prediction, h = self.model(x, h)
        return ((prediction - y) ** 2).mean(), h

    def initial(self):
        return ops.zeros((self.memory["streams"], self.model.hidden))

    def fit_window(self, x, y):
        h = self.memory["h"] if self.memory["h"] is not None else self.initial()
        (loss, h), grads = self.grad_fn(x, y, h)
        self.optimizer(grads)
        self.memory["h"] = ops.stop_gradient(h)
        return loss


def windows(streams=4, length=6, count=40):
    t = np.arange(count * length + 1)
    series = np.stack([np.sin(t / (3 + s)) + 0.3 * np.sin(t / 11) for s in range(streams)]).astype(np.float32)
    for i in range(count):
        part = series[:, i * length : (i + 1) * length + 1, None]
        yield Tensor(part[:, :-1]), Tensor(part[:, 1:])


model = Forecaster()
optimizer = nn.Adam(model.trainable_params(), 0.01)
trainer = StreamTrainer(model, optimizer, 4)
batches = ck.data.resumable(list(windows()), epochs=1)
with ck.CheckpointManager(ROOT, save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")) as manager:
    state = ck.StateManager([model, optimizer], batches)
    manager.restore(state)
    for x, y in batches:
        loss = trainer.fit_window(x, y)
        manager.step(state, {"loss": loss})
    manager.save_final(state)
os._exit(0)
