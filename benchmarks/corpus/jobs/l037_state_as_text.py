# truth: exact
# class: attribute
# head: pynative_ops
# A controller is given by name; its state_dict is one text, with floats by float.hex(), which loses no bit.

ms.set_seed(4137)


class RateController:
    def __init__(self, base):
        self.base, self.mean, self.count = base, 0.0, 0

    def rate(self, loss):
        self.count += 1
        weight = max(0.1, 1 / self.count)
        self.mean += weight * (loss - self.mean)
        return self.base * min(3.0, loss / self.mean)

    def state_dict(self):
        return {"text": f"{self.mean.hex()} {self.count}"}

    def load_state_dict(self, state):
        mean, count = state["text"].split()
        self.mean, self.count = float.fromhex(mean), int(count)


r = np.random.RandomState(37)
rows = []
for _ in range(8):
    x = r.randn(8, 5).astype(np.float32)
    rows.append((ms.Tensor(x), ms.Tensor(np.abs(x).sum(1, keepdims=True).astype(np.float32))))
net = nn.SequentialCell(nn.Dense(5, 8), nn.ReLU(), nn.Dense(8, 1))
mse = nn.MSELoss()
opt = nn.Momentum(net.trainable_params(), 0.01, 0.8)
gradients = ms.value_and_grad(lambda x, y: mse(net(x), y), None, net.trainable_params())
controller = RateController(0.01)

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches, controller=controller)
    manager.restore(state)
    for x, y in batches:
        loss, grads = gradients(x, y)
        manager.fence()
        ops.assign(opt.learning_rate, ms.Tensor(controller.rate(float(loss.asnumpy())), ms.float32))
        opt(grads)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
