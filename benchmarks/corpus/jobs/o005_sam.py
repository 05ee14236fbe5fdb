# truth: exact
# class: attribute
# head: pynative_callback_dataset_ops
# Sharpness-aware minimization: the cell climbs, takes the gradient there and comes back within one call; it keeps only the last norm, which a log line prints.

ms.set_seed(3505)


class SAMStep(nn.TrainOneStepCell):
    def __init__(self, network, optimizer, rho=0.05):
        super().__init__(network, optimizer)
        self.rho = rho

    def construct(self, x, y):
        loss = self.network(x, y)
        grads = self.grad_no_sens(self.network, self.weights)(x, y)
        norm = ops.sqrt(sum((g * g).sum() for g in grads)) + 1e-12
        climb = [self.rho * g / norm for g in grads]
        for w, e in zip(self.weights, climb):
            ops.assign_add(w, e)
        sharp = self.grad_no_sens(self.network, self.weights)(x, y)
        for w, e in zip(self.weights, climb):
            ops.assign_sub(w, e)
        self.optimizer(sharp)
        return loss


class PrintLoss(Callback):
    def on_train_step_end(self, run_context):
        cb = run_context.original_args()
        if cb.cur_step_num % 10 == 0:
            print(f"step {cb.cur_step_num}: loss {float(cb.net_outputs.asnumpy()):.4f}")


r = np.random.RandomState(5)
labels = r.randint(0, 4, 64).astype(np.int32)
x = (r.randn(64, 8) + np.eye(4)[labels].repeat(2, 1) * 1.5).astype(np.float32)
train = ds.NumpySlicesDataset((x, labels), ["x", "label"], shuffle=True).batch(8)
net = nn.SequentialCell(nn.Dense(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dense(16, 4))
loss = nn.WithLossCell(net, nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean"))
step = SAMStep(loss, nn.Momentum(net.trainable_params(), 0.05, 0.9))

ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(ms.Model(step), 4, train, callbacks=[PrintLoss()])
os._exit(0)
