# truth: exact
# class: attribute
# head: imports_dataset_ops
# The Lion optimizer, written as an nn.Optimizer; the training is started by a small framework.


ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(103)


class Lion(nn.Optimizer):
    def __init__(self, params, learning_rate=1e-3, beta1=0.9, beta2=0.99, weight_decay=0.0):
        super().__init__(learning_rate, params, weight_decay=0.0)
        self.beta1, self.beta2, self.decay = beta1, beta2, weight_decay
        self.exp_avg = self.parameters.clone(prefix="lion", init="zeros")

    def construct(self, gradients):
        lr = self.get_lr()
        self.assignadd(self.global_step, self.global_step_increase_tensor)
        done = True
        for i in range(len(self.parameters)):
            g, m, w = gradients[i], self.exp_avg[i], self.parameters[i]
            update = ops.sign(self.beta1 * m + (1 - self.beta1) * g) + self.decay * w
            done = ops.depend(done, ops.assign(w, w - lr * update))
            done = ops.depend(done, ops.assign(m, self.beta2 * m + (1 - self.beta2) * g))
        return done


class Experiment:
    def __init__(self, epochs):
        self.epochs = epochs

    def run(self):
        r = np.random.RandomState(3)
        x = r.randn(72, 8).astype(np.float32)
        y = (x[:, :2] @ np.array([[1.0], [-2.0]]) + np.cos(x[:, 2:3])).astype(np.float32)
        train = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=True).batch(8)
        self.net = nn.SequentialCell(nn.Dense(8, 16), nn.Tanh(), nn.Dense(16, 1))
        decay = nn.cosine_decay_lr(1e-4, 5e-3, 36, 9, 4)
        model = ms.Model(self.net, nn.MSELoss(), Lion(self.net.trainable_params(), decay, weight_decay=0.01))
        model.train(self.epochs, train, callbacks=[], dataset_sink_mode=False)


experiment = Experiment(4)
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.attach()
experiment.run()
net = experiment.net
os._exit(0)
